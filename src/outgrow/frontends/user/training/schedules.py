"""What becomes of `scheduler.step()` inside of a step? It is Python, and runs after the captured part of every call.

A learning rate scheduler counts calls and writes the rates into the optimizers' parameter groups, where a captured
step reads them anew at each call. So its own step need not be captured, provided that nothing after it in the user's
step depends on it: no optimizer makes a step, and nobody asks for the rate or for the count, in whose place an object
is that refuses to be read.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch.utils._pytree as pytree
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ChainedScheduler, CyclicLR, LRScheduler, OneCycleLR, SequentialLR
from torch.optim.optimizer import Optimizer

from outgrow.errors import Uncapturable
from outgrow.frontends.user.own_thread import in_own_thread
from outgrow.frontends.user.reach.hooks import before_optimizers
from outgrow.frontends.user.unreadable import Unreadable

_RATES = ("_last_lr",)
"""What a scheduler keeps of its own steps, beside numbers."""
_OF_THE_RATE_ALONE = frozenset(
    kind
    for kind in vars(lr_scheduler).values()
    if isinstance(kind, type) and kind not in (CyclicLR, OneCycleLR, SequentialLR, ChainedScheduler)
)
"""Torch's own schedulers that change nothing but rates."""
_EARLY = (
    "the step asks for what scheduler.step() changes, the learning rate or the count, or a momentum, after it; ask "
    "after the step"
)


class _Early(Unreadable):
    """Stands for a rate, or for a count of steps, that will be another one at each call."""

    def error(self) -> Uncapturable:
        """Return the refusal."""
        return Uncapturable(_EARLY)

    __repr__ = Unreadable.refuse


@dataclass(frozen=True)
class Schedulers:
    """The schedulers whose steps were put off while the user's step was traced, in their order.

    `withheld` are the tables in which something cannot be read since, with what was there.
    """

    waiting: list[LRScheduler] = field(default_factory=list[LRScheduler])
    withheld: list[tuple[dict[str, object], str, object]] = field(
        default_factory=list[tuple[dict[str, object], str, object]]
    )

    def put_off(self, scheduler: LRScheduler, *args: object, **kwargs: object) -> None:
        """Stand in for `LRScheduler.step` in the thread of the trace."""
        if args or kwargs:
            raise Uncapturable(
                f"the step gives {type(scheduler).__name__}.step an argument, which would be the same in every call; "
                "call it after the step"
            )
        self.waiting.append(scheduler)
        own = vars(scheduler)
        tables = [(own, key) for key, value in own.items() if type(value) in (int, float) or key in _RATES]
        for group in scheduler.optimizer.param_groups:
            keys = ("lr",) if type(scheduler) in _OF_THE_RATE_ALONE else group.keys() - {"params"}
            tables += [(group, key) for key in keys if key in group]
        for table, key in tables:
            if not isinstance(table[key], _Early):
                self.withheld.append((table, key, table[key]))
                table[key] = _Early()

    def ended(self, returned: object) -> None:
        """Put back what was withheld, now that the step has ended and `returned` something."""
        written = [key for table, key, _ in self.withheld if not isinstance(table.get(key), _Early)]
        self.put_back()
        if written:
            raise Uncapturable(
                f"the step sets {written[0]!r} after scheduler.step(), which comes after all else in a captured step; "
                "set it after the step"
            )
        if any(isinstance(leaf, _Early) for leaf in pytree.tree_leaves(returned)):
            raise Uncapturable(_EARLY)

    def put_back(self) -> None:
        """Put back what was withheld."""
        for table, key, value in self.withheld:
            table[key] = value
        self.withheld.clear()

    def rates(self, scheduler: LRScheduler) -> list[object]:
        """Stand in for `LRScheduler.get_last_lr`, as `put_off` does: the rates as they are at this call."""
        if scheduler in self.waiting:
            raise Uncapturable("the step asks for the learning rate after scheduler.step(); ask after the step")
        return [group["lr"] for group in scheduler.optimizer.param_groups]

    def check_is_over(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer's step after one of its schedulers was put off."""
        if any(scheduler.optimizer is optimizer for scheduler in self.waiting):
            raise Uncapturable(
                f"{type(optimizer).__name__}.step follows scheduler.step(); "
                "call the scheduler after the last step of its optimizer, and make it outside of the step: a new one "
                "makes a step by itself"
            )


@contextmanager
def schedulers_put_off() -> Iterator[Schedulers]:
    """Within this context no scheduler makes a step; the yielded object says which would have."""
    found = Schedulers()
    try:
        with ExitStack() as stack:
            stack.enter_context(before_optimizers(found.check_is_over))
            for kind in _kinds(LRScheduler):
                if "step" in vars(kind):
                    stack.enter_context(patch.object(kind, "step", in_own_thread(found.put_off, kind.step)))
            rates = in_own_thread(found.rates, LRScheduler.get_last_lr)
            stack.enter_context(patch.object(LRScheduler, "get_last_lr", rates))
            yield found
    finally:
        found.put_back()


def _kinds(kind: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)
