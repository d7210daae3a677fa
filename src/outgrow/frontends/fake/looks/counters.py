"""Which numbers of its state may a step look at while it is captured? Those that are alone in their tensor.

Optimizers count their steps, averaged models their models, and modules what they have done, in tensors of one number.
Where Python branches on such a number (RAdam: were there steps enough?), the answer is that of this call, and a guard:
what was asked is asked anew before every later call. So the number that the step sees is a symbol, and it is known how
much a number has grown in the step so far, as long as only whole numbers were added to a whole one. Whatever else may
write a counter, by any view of it, makes it unknown.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import TypeAlias

import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.weak import WeakIdKeyDictionary

from outgrow.frontends.fake.arguments import Invoked, leaves_of, tensors_of, writes, writes_in_silence
from outgrow.frontends.fake.looks.literals import Literals
from outgrow.frontends.fake.looks.questions import Looks
from outgrow.frontends.user.training.guards import symbol
from outgrow.frontends.user.training.sharing import place
from outgrow.frontends.user.training.state import BufferSlot, OptimizerSlot, Slot

aten = torch.ops.aten
_LARGEST = 1 << 24
"""Up to here whole numbers are exact in every type that optimizers count in."""
_LARGEST_FLOAT = 1 << 53
"""Up to here they are exact in a Python float."""
_LOOK = aten._local_scalar_dense.default
_ADD = (aten.add_.Tensor, aten.add_.Scalar, aten._foreach_add_.Scalar, aten._foreach_add_.Tensor)
Comparison: TypeAlias = Callable[[torch.SymInt | torch.SymFloat | float, float], object]
_COMPARED: Mapping[object, Comparison] = {
    aten.eq.Scalar: operator.eq,
    aten.ne.Scalar: operator.ne,
    aten.lt.Scalar: operator.lt,
    aten.le.Scalar: operator.le,
    aten.gt.Scalar: operator.gt,
    aten.ge.Scalar: operator.ge,
}


@dataclass(frozen=True, slots=True)
class Counted:
    """The number that is in `slot` when the step begins, and `added` to it."""

    slot: BufferSlot | OptimizerSlot
    added: float = 0.0

    def seen(self, number: float) -> float | None:
        """Return what the step sees where `number` is in the slot; None where sums are not exact."""
        return number + self.added if not self.added or _is_exact(number) else None


@dataclass(frozen=True, slots=True)
class _Held:
    """What a counter is now, at this call."""

    counter: Counted
    number: float
    dtype: torch.dtype


class Counters:
    """The counters of a step while it is traced; `seen` are those that it looked at, by their symbols."""

    def __init__(
        self,
        shape_env: ShapeEnv,
        literals: Literals,
        looks: Looks,
        tensors: Mapping[Slot, Tensor],
        twins: Mapping[Slot, Tensor],
    ) -> None:
        """`tensors` are the real ones before the step, `twins` what the step sees in their place."""
        self._shape_env, self._literals, self._looks = shape_env, literals, looks
        self._held = {
            place(twins[slot]): _Held(Counted(slot), tensor.item(), tensor.dtype)
            for slot, tensor in tensors.items()
            if isinstance(slot, BufferSlot | OptimizerSlot) and _is_number(tensor)
        }
        self._answers: MutableMapping[Tensor, Callable[[], bool]] = WeakIdKeyDictionary()
        self.seen: dict[sympy.Symbol, tuple[Counted, float]] = {}

    def followed(self, call: Invoked, run: Callable[[], object]) -> object:
        """Return what `run` returns, the result of a call; a symbol or an answer where it looks at a counter."""
        if call.func is _LOOK or call.func in _COMPARED:
            return self._asked(call, run)
        grown = dict(self._grown(call))
        found = run()
        if writes(call.func) or writes_in_silence(call.func):
            for written in map(place, call.written()):
                self._held.pop(written, None)
            self._answers = WeakIdKeyDictionary()
            self._held |= grown
        return found

    def answers(self, tensor: Tensor) -> bool:
        """Whether a tensor is a counter that a step may look at, or a comparison of one."""
        held = self._of(tensor)
        return tensor in self._answers or (held is not None and not _is_of_each_call(held.counter.slot))

    def _asked(self, call: Invoked, run: Callable[[], object]) -> object:
        """Return what the step finds when it looks at a number, or compares one."""
        func, tensor = call.func, call.args[0]
        assert isinstance(tensor, Tensor), "the number lies in a tensor"
        held = self._of(tensor)
        if func is _LOOK and tensor in self._answers:
            return self._answers[tensor]()
        if func is _LOOK and held is not None and not _is_of_each_call(held.counter.slot):
            return self._looked_at(held)
        found = run()
        if func in _COMPARED and held is not None and isinstance(call.args[1], int | float):
            assert isinstance(found, Tensor), "a comparison gives a tensor"
            self._answers[found] = partial(self._answer, _COMPARED[func], held, float(call.args[1]))
        return found

    def _of(self, tensor: Tensor) -> _Held | None:
        """Return the counter that a tensor is, or views."""
        held = self._held.get(place(tensor))
        return held if held is not None and held.dtype is tensor.dtype and tensor.numel() == 1 else None

    def _grown(self, call: Invoked) -> Iterator[tuple[int, _Held]]:
        """Yield the places of the counters that a call adds a literal to, and what they are then."""
        if call.func not in _ADD:
            return
        targets = tensors_of(leaves_of(call.args[0]))
        addend, factor = call.args[1], call.kwargs.get("alpha", 1)
        amount = self._literals.number(addend) if isinstance(addend, Tensor) else addend
        if not isinstance(amount, int | float) or not isinstance(factor, int | float):
            return
        more = float(amount * factor)
        for target in targets:
            held = self._of(target)
            if held is not None and all(map(_is_exact, (more, held.number, held.number + more))):
                counter = replace(held.counter, added=held.counter.added + more)
                yield place(target), replace(held, counter=counter, number=held.number + more)

    def _looked_at(self, held: _Held) -> bool | int | float | torch.SymInt | torch.SymFloat:
        """Return what the step finds when it looks at a number: a symbol, but for truth values and what it is told."""
        if held.dtype is torch.bool:
            return self._answer(operator.ne, held, 0.0)
        if held.dtype.is_floating_point:
            return self._symbol(held)
        found = symbol(self._shape_env, f"counter_{len(self.seen)}", int(held.number))
        self.seen[found.node.expr] = (held.counter, held.number)
        return int(found) if self._looks.next_is_told() else found

    def _symbol(self, held: _Held) -> torch.SymInt | torch.SymFloat | float:
        """Return a symbol for a counter; for one that is not finite the number, since no symbol is equal to that."""
        found = symbol(self._shape_env, f"counter_{len(self.seen)}", float(held.number))
        self.seen[found.node.expr] = (held.counter, held.number)
        return found if isfinite(held.number) else held.number

    def _answer(self, how: Comparison, held: _Held, other: float) -> bool:
        with disable_proxy_modes_tracing():
            return bool(how(self._symbol(held), other))


def _is_of_each_call(slot: BufferSlot | OptimizerSlot) -> bool:
    """Whether a number is another one in each call, as a batch norm without momentum looks at: each were captured."""
    return isinstance(slot, BufferSlot) and slot.name.endswith("num_batches_tracked")


def _is_number(tensor: Tensor) -> bool:
    """Whether a tensor is one number on the host, alone in its memory, that a Python float can be."""
    if isinstance(tensor, FakeTensor) or tensor.numel() != 1 or tensor.is_complex() or tensor.device.type != "cpu":
        return False
    is_alone = tensor.untyped_storage().nbytes() == tensor.element_size()
    return is_alone and (tensor.is_floating_point() or abs(tensor.item()) < _LARGEST_FLOAT)


def _is_exact(number: float) -> bool:
    """Whether a number is whole, and small enough that the next ones are, too."""
    return float(number).is_integer() and abs(number) < _LARGEST
