"""What may a step look at? At what is made of its batch, small buffers and tensors outside; later calls are asked anew.

    if mask.all():                         where all are ones, the mask is left out
    x = x[:, : lengths.max().item()]       padding that nobody needs is cut off
    if self.steps % 10 == 0:               every tenth step does more
    if (mask == causal).all():             a mask that the step finds outside, as attention asks it

The step is captured as it goes with the batch and buffers of this call, and what it looked at is kept as a *question*:
the deterministic operators that make it of these, and what they answered. Before a later call they run on its own
arguments and buffers, and on what is outside by then. The captured step serves the call if all answers are the same,
since then it goes the same way.

How many elements a mask chooses is asked, too (`logits[mask]`, `mask.nonzero()`), how many kinds there are
(`labels.unique()`), and up to which number (`labels.bincount()`): the result has that size.

A decision (`if`, `while`, `bool()`) is answered at once. What `item()` and `tolist()` give are scalars of the graph as
long as the step only calculates with them (`loss / mask.sum().item()`), so that all calls share a plan. Where that does
not do, the step is traced again, and they are *told*: first the one after which it failed, and all in the end. Numbers
with fractions are never told, since nearly every call has others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import get_ident
from typing import TypeAlias
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from outgrow.frontends.fake.arguments import Invoked, exchanged, leaves_of, tensors_of, writes, writes_in_silence
from outgrow.frontends.fake.looks.literals import Literals, is_deterministic
from outgrow.frontends.fake.looks.noted import Noted
from outgrow.frontends.user.lines import present_line
from outgrow.frontends.user.training.state import BufferSlot

_MOST_BYTES, _MOST_OPERATORS = 16 << 20, 512
"""What all questions of a step may take before each call."""
_MOST_BUFFER_BYTES = 1 << 16
"""A buffer that is larger is not looked at."""
_NONZERO, _SELECT = torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default
_COUNTED = {
    *(_NONZERO, _SELECT, torch.ops.aten.repeat_interleave.Tensor),
    *(torch.ops.aten._unique2.default, torch.ops.aten._unique.default, torch.ops.aten.bincount.default),
}
"""Operators whose results have as many entries, or rows, as the contents of their operands say."""
_SIZE = torch.ops.aten.sym_size.int
_LOOK = torch.ops.aten._local_scalar_dense.default
"""It looks at a number; others that look, such as `aten.equal`, decide."""
Answer: TypeAlias = bool | int


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """A tensor that the step has found outside."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Given:
    """The argument of the step of this number, a buffer, or a tensor from outside."""

    leaf: int | BufferSlot | Outer


@dataclass(frozen=True, slots=True, eq=False)
class AskedCall:
    """A call of an operator, whose results take `size_bytes`. What was called earlier has a smaller `serial`.

    In place of tensors are `Given` and `AskedResult`, and real ones where the content is the same in every call. What
    it writes is a copy of what it is given.
    """

    operator: OpOverload
    args: Sequence[object]
    kwargs: Mapping[str, object]
    size_bytes: int
    serial: int


@dataclass(frozen=True, slots=True)
class AskedResult:
    """The result of a call of this number."""

    call: AskedCall
    number: int


_Source: TypeAlias = Given | AskedResult
_Known: TypeAlias = dict[AskedCall, list[object]]
"""What calls have given."""
Read: TypeAlias = Callable[[int | BufferSlot], object]
"""Gives the argument of a number, or what is in a buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What a step has looked at: what the last of these `calls` gives, or whether that is zero.

    It did so on a `line`, and found this `answer`. It asks nothing but the batch if it is `of_batch`.
    """

    calls: tuple[AskedCall, ...]
    is_decision: bool
    line: str | None
    answer: Answer
    of_batch: bool

    def changes(self, read: Read, known: "_Known", *, or_less: bool) -> bool:
        """Whether the answer is another one for what is read now, and if `or_less`, not a smaller number."""
        found = _answer(self.calls, read=read, known=known, is_decision=self.is_decision)
        is_less = or_less and type(found) is int and 0 <= found < self.answer
        return found != self.answer and not is_less


def first_changed(questions: Iterable[Question], read: Read, *, or_less: bool = False) -> Question | None:
    """Return the first of some questions that has another answer in a call for which arguments and buffers are read.

    Later ones are not asked then: they may have no answer. If `or_less` is right, smaller numbers are.
    """
    known: _Known = {}
    return next((item for item in questions if item.changes(read, known, or_less=or_less)), None)


@dataclass(slots=True)
class Looks:
    """Which looks at numbers are `told` while a step is traced, counted from 0, or all; and which were `concealed`."""

    told: frozenset[int] = frozenset()
    tells_all: bool = False
    concealed: list[int] = field(default_factory=list[int])
    count: int = 0

    def anew(self) -> "Looks":
        """Return these looks for another trace that is told as much."""
        return Looks(self.told, self.tells_all)

    def more_told(self) -> "Looks":
        """Return looks of which the one is told that was concealed last."""
        return Looks(self.told | {self.concealed[-1]})

    def next_is_told(self) -> bool:
        """Count a look, and return whether it is told."""
        number, self.count = self.count, self.count + 1
        if self.tells_all or number in self.told:
            return True
        self.concealed.append(number)
        return False


class Asking:
    """Notes what is made of batch, buffers and tensors outside in a trace, and answers from the real ones."""

    def __init__(
        self,
        leaves: Sequence[object],
        batch: Mapping[int, Tensor],
        buffers: Mapping[BufferSlot, tuple[Tensor, Tensor]],
        literals: Literals,
        looks: Looks,
    ) -> None:
        """`leaves` are those of the arguments, `batch` the fake tensors that stand for some, by number.

        Of `buffers` the real ones are given, and the fake ones.
        """
        small = {slot: pair for slot, pair in buffers.items() if pair[0].nbytes <= _MOST_BUFFER_BYTES}
        of_buffers: Mapping[int | BufferSlot, object] = {slot: real for slot, (real, _) in small.items()}
        self._real = {**dict(enumerate(leaves)), **of_buffers}
        self._literals, self._looks = literals, looks
        self._sources: Noted[_Source] = Noted()
        self._known: _Known = {}
        self._serial = 0
        self._is_deciding, self._thread = False, get_ident()
        self.questions: list[Question] = []
        fakes: dict[int | BufferSlot, Tensor] = {**batch, **{slot: fake for slot, (_, fake) in small.items()}}
        for leaf, tensor in fakes.items():
            if not (isinstance(self._real[leaf], FakeTensor) or tensor.is_meta):
                self._sources.note(tensor, Given(leaf))

    def found(self, real: Tensor, fake: Tensor) -> None:
        """Note a tensor that the step has found outside, and what stands for it."""
        if type(real) is Tensor and not real.requires_grad and not real.is_meta and real.nbytes <= _MOST_BYTES:
            self._sources.note(fake, Given(Outer(real)))

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Follow tensors no longer, nor others in their memory."""
        self._sources.forget(tensors)

    def may_ask(self, tensor: Tensor) -> bool:
        """Whether a step may look at a tensor, and at the little that it makes of it."""
        source = self._sources.of(tensor)
        if source is None:
            return False
        return self._has_room(_needed(source.call) if isinstance(source, AskedResult) else (), 2 * tensor.nbytes)

    def deciding(self) -> AbstractContextManager[object]:
        """Return a context in which it is asked whether a tensor is zero; other threads do so beside the step."""
        is_own = get_ident() == self._thread
        return patch.object(self, "_is_deciding", True) if is_own else nullcontext()  # noqa: FBT003

    def followed(self, called: Invoked, run: Callable[[], object]) -> object:
        """Return what `run` returns, the fake result of a call; the answer where it looks at the batch."""
        func, tensors = called.func, called.tensors
        if not isinstance(func, OpOverload) or writes(func) or writes_in_silence(func):
            known = [*self._written(called)]
            found = run()
            self._sources.forget(called.written())
            for tensor, source in known:
                self._sources.note(tensor, source)
            return found
        if func is _SELECT and tensors[0] not in self._sources:
            return self._selected(tensors[0], tensors[1], run)
        if not self._is_followed(called):
            return run()
        if func in _COUNTED:
            return self._counted(called, run)
        if torch.Tag.data_dependent_output in func.tags:
            return self._looked_at(called, run)
        found = run()
        made = tensors_of(leaves_of(found))
        if all(tensor.layout is torch.strided for tensor in made):
            size = 0 if func.is_view else sum(tensor.nbytes for tensor in made)
            call = self._call(called, size)
            for number, tensor in enumerate(made):
                if tensor not in self._sources and not self._literals.knows(tensor):
                    self._sources.note(tensor, AskedResult(call, number))
        return found

    def _written(self, called: Invoked) -> Iterator[tuple[Tensor, AskedResult]]:
        """Yield what a call writes, if it writes it with what is followed, under each of its names.

        It may have been made of literals until then. What lies otherwise in the memory of a view that is written is not
        followed any longer.
        """
        func = called.func
        if not isinstance(func, OpOverload) or not self._is_followed(called):
            return
        targets, returns = called.written(), func._schema.returns
        if len(targets) != 1 or len(returns) != 1 or returns[0].alias_info is None:
            return
        (target,) = targets
        call, form = self._call(called, target.untyped_storage().nbytes()), _form(target)
        names = (*self._sources.sharing(target), *self._literals.sharing(target))
        yield from ((item, AskedResult(call, 0)) for item in names if _form(item) == form)

    def _looked_at(self, called: Invoked, run: Callable[[], object]) -> object:
        func, tensor = called.func, called.tensors[0]
        calls = _needed(self._call(called, 0))
        has_fractions = func is _LOOK and (tensor.is_floating_point() or tensor.is_complex())
        if not self._has_room(calls) or (has_fractions and not self._is_deciding):
            return run()
        if func is _LOOK and not self._is_deciding and not self._looks.next_is_told():
            return run()
        return self._asked(calls, is_decision=self._is_deciding)

    def _asked(self, calls: tuple[AskedCall, ...], *, is_decision: bool) -> Answer:
        """Return what the last of some calls gives, or whether that is zero, and keep the question."""
        with no_dispatch():
            answer = _answer(calls, read=self._real.__getitem__, known=self._known, is_decision=is_decision)
        given = (leaf for item in calls for leaf in leaves_of(item.args, item.kwargs))
        of_batch = all(isinstance(leaf.leaf, int) for leaf in given if isinstance(leaf, Given))
        self.questions.append(Question(calls, is_decision, present_line(), answer, of_batch))
        return answer

    def _counted(self, called: Invoked, run: Callable[[], object]) -> object:
        """Return fake results of the sizes that the batch gives them, and ask for that of the first."""
        tensors = called.tensors
        call = self._call(called, 8 * sum(item.numel() * max(item.dim(), 1) for item in tensors))
        rows = AskedCall(_SIZE, (AskedResult(call, 0), 0), {}, 0, call.serial)
        calls = (*_needed(call), rows)
        if not self._has_room(calls):
            return run()
        self._asked(calls, is_decision=False)
        reals = [real for real in self._known[call] if isinstance(real, Tensor)]
        made = [tensors[0].new_empty_strided(real.shape, real.stride(), dtype=real.dtype) for real in reals]
        for number, item in enumerate(made):
            self._sources.note(item, AskedResult(call, number))
        return made[0] if len(called.func._schema.returns) == 1 else tuple(made)

    def _selected(self, values: Tensor, mask: Tensor, run: Callable[[], object]) -> object:
        """Return what a mask of the batch, or a known one, selects of other values: as many as it has that are true.

        Where it is spread over the values, each of its entries is there as many times as the others.
        """
        times = torch.broadcast_shapes(values.shape, mask.shape).numel() // max(1, mask.numel())
        if self._literals.knows(mask):
            return values.new_empty(times * mask.nonzero().shape[0])
        chosen_by = Invoked(_NONZERO, (mask,), {})
        if not self._is_followed(chosen_by):
            return run()
        chosen = self._counted(chosen_by, run)
        return values.new_empty(times * chosen.shape[0]) if isinstance(chosen, Tensor) else chosen

    def _has_room(self, calls: Sequence[AskedCall], more_bytes: int = 0) -> bool:
        """Whether these calls, with all that questions have needed so far, take little enough."""
        needed = self._known.keys() | set(calls)
        return len(needed) <= _MOST_OPERATORS and more_bytes + sum(item.size_bytes for item in needed) <= _MOST_BYTES

    def _is_followed(self, called: Invoked) -> bool:
        """Whether a call is given some of the batch, and gives the same whenever the batch is the same."""
        func = called.func
        if not any(tensor in self._sources for tensor in called.tensors):
            return False
        if func.namespace != "aten" or "empty" in func._schema.name or not is_deterministic(func, called.leaves):
            return False
        return all(tensor in self._sources or self._literals.knows(tensor) for tensor in called.tensors)

    def _call(self, called: Invoked, size_bytes: int) -> AskedCall:
        self._serial += 1
        args, kwargs = called.exchanged(self._source)
        return AskedCall(called.func, args, kwargs, size_bytes, self._serial)

    def _source(self, tensor: Tensor) -> object:
        source = self._sources.of(tensor)
        return self._literals.content(tensor) if source is None else source


def _form(tensor: Tensor) -> object:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _copy(tensor: Tensor) -> Tensor:
    """Return a tensor that lies as this one does, in a copy of its memory."""
    memory = tensor.untyped_storage().clone()
    return tensor.new_empty(0).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())


def _needed(call: AskedCall) -> tuple[AskedCall, ...]:
    """Return a call, and those that it depends on, in their order."""
    found: set[AskedCall] = set()
    waiting = [call]
    while waiting:
        item = waiting.pop()
        if item not in found:
            found.add(item)
            leaves = leaves_of(item.args, item.kwargs)
            waiting += [leaf.call for leaf in leaves if isinstance(leaf, AskedResult)]
    return tuple(sorted(found, key=lambda item: item.serial))


def _answer(calls: Sequence[AskedCall], *, read: Read, known: _Known, is_decision: bool) -> Answer:
    """Return what the last of some calls gives for what is read now; from then on all of them are `known`."""

    def real(source: _Source) -> object:
        if isinstance(source, AskedResult):
            return known[source.call][source.number]
        leaf = source.leaf.tensor if isinstance(source.leaf, Outer) else read(source.leaf)
        assert isinstance(leaf, Tensor), "the signature says that it is a tensor"
        return leaf.resolve_conj().resolve_neg()

    with torch.no_grad(), torch._C._DisableAutocast():
        for item in calls:
            if item not in known:
                args, kwargs = pytree.tree_map_only((Given, AskedResult), real, (item.args, item.kwargs))
                if writes(item.operator):
                    args, kwargs = exchanged((args, kwargs), _copy)
                known[item] = pytree.tree_leaves(item.operator(*args, **kwargs))
    (answer,) = known[calls[-1]]
    if is_decision:
        return bool(answer)
    assert isinstance(answer, Answer), "numbers with fractions are not told"
    return answer
