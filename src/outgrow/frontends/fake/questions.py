"""What may a step look at in its batch? At what is made of the batch alone; later calls are asked anew.

    if mask.all():                         where all are ones, the mask is left out
    x = x[:, : lengths.max().item()]       padding that nobody needs is cut off

The step is captured as it goes with the batch of this call, and what it looked at is kept as a *question*: the
deterministic operators that make it of the arguments, and what they answered. Before a later call they run on its own
arguments. The captured step serves the call if all answers are the same, since then it goes the same way.

Answers are yes, no, and whole numbers. A whole number is a scalar of the graph as long as the step only calculates with
it (`loss / mask.sum().item()`), so that all calls share a plan; where that does not do, the step is traced again, and
numbers are answered. Of a number with fractions nearly every call has another, so it is never answered; nor is what
takes more than 16 MiB to find out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types
from torch.utils._mode_utils import no_dispatch

from outgrow.frontends.fake.literals import Literals, tensors_of, writes, written_by
from outgrow.frontends.fake.noted import Noted
from outgrow.frontends.user.refusals import present_line

_MOST_BYTES, _MOST_OPERATORS = 16 << 20, 256
"""What one question may take."""
_LOOK, _EQUAL = torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default
"""Operators that answer."""


@dataclass(frozen=True, slots=True)
class Given:
    """The argument of the step of this number."""

    leaf: int


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Result number `number` of an operator, of which these are the arguments; it takes `size_bytes`.

    In place of tensors are `Given` and `Made`, and real ones where the content is the same in every call. What was made
    earlier has a smaller `serial`.
    """

    operator: OpOverload
    args: Sequence[object]
    kwargs: Mapping[str, object]
    number: int
    size_bytes: int
    serial: int


_Source: TypeAlias = Given | Made


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What a step has looked at in its batch: the last of what is `made` in this order, the line, and the answer."""

    made: tuple[Made, ...]
    line: str | None
    answer: object


@dataclass(frozen=True, slots=True)
class Questions:
    """All that a step has asked, in this order."""

    all: tuple[Question, ...] = ()

    def changed(self, leaves: Sequence[object]) -> Question | None:
        """Return the first that has another answer in a call with these leaves of arguments.

        Later ones are not asked then: they may have no answer.
        """
        known: dict[Made, object] = {}
        return next((item for item in self.all if _answer(item.made, leaves, known) != item.answer), None)


@dataclass(slots=True)
class Numbers:
    """Whether whole numbers of the batch are `told` while a step is traced, and whether one was `concealed`."""

    told: bool = False
    concealed: bool = False


class Asking:
    """Notes what is made of the batch while a step is traced, and answers from the `leaves` of its arguments."""

    def __init__(
        self, leaves: Sequence[object], batch: Mapping[int, Tensor], literals: Literals, numbers: Numbers
    ) -> None:
        """`batch` are the fake tensors that stand for leaves, by number."""
        self._leaves, self._literals, self._numbers = leaves, literals, numbers
        self._sources: Noted[_Source] = Noted()
        self._asked: list[Question] = []
        self._serial = 0
        for leaf, tensor in batch.items():
            if not (isinstance(leaves[leaf], FakeTensor) or tensor.is_meta):
                self._sources.note(tensor, Given(leaf))

    @property
    def questions(self) -> Questions:
        """What the step has asked so far."""
        return Questions(tuple(self._asked))

    def may_ask(self, tensor: Tensor) -> bool:
        """Whether a step may look at a tensor, and at the little that it makes of it."""
        source = self._sources.of(tensor)
        return source is not None and _is_small(_needed(source), 2 * tensor.nbytes)

    def followed(
        self, func: object, args: Sequence[object], kwargs: Mapping[str, object], run: Callable[[], object]
    ) -> object:
        """Return what `run` returns, the fake result of `func`; the answer where it looks at the batch."""
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = tensors_of(leaves)
        if not any(tensor in self._sources for tensor in tensors):
            return run()
        if not isinstance(func, OpOverload) or not self._is_followed(func, tensors, leaves):
            found = run()
            if writes(func):
                self._sources.forget(written_by(func, args, kwargs))
            return found
        if func is _EQUAL or (func is _LOOK and not _has_fractions(tensors[0])):
            made = _needed(self._made(func, args, kwargs))
            if not _is_small(made):
                return run()
            if self._numbers.told or func is _EQUAL or tensors[0].dtype is torch.bool:
                return self._answered(made)
            self._numbers.concealed = True
            return run()
        found = run()
        for number, tensor in enumerate(tensors_of(pytree.tree_leaves(found))):
            is_new = tensor not in self._sources and not self._literals.knows(tensor)
            if is_new and tensor.layout is torch.strided:
                size = 0 if func.is_view else tensor.nbytes
                self._sources.note(tensor, self._made(func, args, kwargs, number, size))
        return found

    def _answered(self, made: tuple[Made, ...]) -> object:
        with no_dispatch():
            answer = _answer(made, self._leaves, {})
        self._asked.append(Question(made, present_line(), answer))
        return answer

    def _is_followed(self, func: OpOverload, tensors: Sequence[Tensor], leaves: Sequence[object]) -> bool:
        """Whether a call gives the same whenever the batch is the same."""
        is_plain = func.namespace == "aten" and "empty" not in func._schema.name and not writes(func)
        is_drawn = torch.Tag.nondeterministic_seeded in func.tags
        if not is_plain or is_drawn or any(isinstance(leaf, py_sym_types) for leaf in leaves):
            return False
        return all(tensor in self._sources or self._literals.knows(tensor) for tensor in tensors)

    def _made(
        self,
        func: OpOverload,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        number: int = 0,
        size_bytes: int = 0,
    ) -> Made:
        self._serial += 1
        own_args, own_kwargs = pytree.tree_map_only(Tensor, self._source, (tuple(args), dict(kwargs)))
        return Made(func, own_args, own_kwargs, number, size_bytes, self._serial)

    def _source(self, tensor: Tensor) -> object:
        source = self._sources.of(tensor)
        return self._literals.content(tensor) if source is None else source


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _needed(source: _Source) -> tuple[Made, ...]:
    """Return what something is made of, and it itself, in the order in which it is made."""
    found: set[Made] = set()
    waiting = [source]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Made) and item not in found:
            found.add(item)
            waiting += [x for x in pytree.tree_leaves((item.args, item.kwargs)) if isinstance(x, _Source)]
    return tuple(sorted(found, key=lambda item: item.serial))


def _is_small(made: Sequence[Made], more_bytes: int = 0) -> bool:
    """Whether operators take so little that they may run before each call."""
    return len(made) <= _MOST_OPERATORS and more_bytes + sum(item.size_bytes for item in made) <= _MOST_BYTES


def _answer(made: Sequence[Made], leaves: Sequence[object], known: dict[Made, object]) -> object:
    """Return what the last of some operators gives for these leaves of arguments; `known` is what they gave before."""

    def real(source: _Source) -> object:
        return leaves[source.leaf] if isinstance(source, Given) else known[source]

    with torch.no_grad(), torch._C._DisableAutocast():
        for item in made:
            if item not in known:
                args, kwargs = pytree.tree_map_only((Given, Made), real, (item.args, item.kwargs))
                known[item] = pytree.tree_leaves(item.operator(*args, **kwargs))[item.number]
    return known[made[-1]]
