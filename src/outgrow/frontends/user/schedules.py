"""What becomes of `scheduler.step()` inside of a step? It is Python, and runs after the captured part of every call.

A learning rate scheduler counts calls and writes the rates into the optimizers' parameter groups, where a captured
step reads them anew at each call. So its own step need not be captured, provided that nothing after it in the user's
step depends on it: no optimizer makes a step, and nobody asks for the rate.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from outgrow.errors import Uncapturable


@dataclass(frozen=True)
class Schedulers:
    """The schedulers whose steps were put off while the user's step was traced, in their order."""

    waiting: list[LRScheduler] = field(default_factory=list[LRScheduler])

    def put_off(self, scheduler: LRScheduler, *args: object, **kwargs: object) -> None:
        """Stand in for `LRScheduler.step`."""
        if args or kwargs:
            raise Uncapturable(
                f"the step gives {type(scheduler).__name__}.step an argument, which would be the same in every call; "
                "call it after the step"
            )
        self.waiting.append(scheduler)

    def rates(self, scheduler: LRScheduler) -> list[object]:
        """Stand in for `LRScheduler.get_last_lr`: the rates as they are at this call, not those of the capture."""
        if scheduler in self.waiting:
            raise Uncapturable("the step asks for the learning rate after scheduler.step(); ask after the step")
        return [group["lr"] for group in scheduler.optimizer.param_groups]

    def check_is_over(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        """Refuse an optimizer's step after one of its schedulers was put off."""
        if any(scheduler.optimizer is optimizer for scheduler in self.waiting):
            raise Uncapturable(
                f"{type(optimizer).__name__}.step follows scheduler.step(); "
                "call the scheduler after the last step of its optimizer"
            )


@contextmanager
def schedulers_put_off() -> Iterator[Schedulers]:
    """Within this context no scheduler makes a step; the yielded object says which would have."""
    found = Schedulers()
    handle = register_optimizer_step_pre_hook(found.check_is_over)
    try:
        with ExitStack() as stack:
            for kind in _kinds(LRScheduler):
                if "step" in vars(kind):
                    stack.enter_context(patch.object(kind, "step", _method(found.put_off)))
            stack.enter_context(patch.object(LRScheduler, "get_last_lr", _method(found.rates)))
            yield found
    finally:
        handle.remove()


def _kinds(kind: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def _method(function):  # noqa: ANN001, ANN202 - of any signature
    """Return a function, which a class binds to its instances; a bound method it would not."""

    def method(scheduler, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
        return function(scheduler, *args, **kwargs)

    return method
