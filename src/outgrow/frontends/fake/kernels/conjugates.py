"""What becomes of a tensor that is conjugated by a mark alone? It is conjugated in earnest, where it gets the mark.

Torch does not compute a conjugate until somebody reads it; plans hold tensors without marks. Nearly every operator that
is given a marked tensor has it conjugated in memory first, so the bits are the same. Products of matrices hand the mark
on to their library, which may add up in another order: they are given what the mark was made of, and told to make it
anew (`outgrow::mm` and its like). Batches of products on the CPU resolve it as others do; what else goes to libraries
is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.arguments import leaves_of, tensors_of, writes
from outgrow.frontends.user.training.sharing import geometry, place

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_CONJUGATE, _COPY = torch.ops.aten._conj.default, torch.ops.aten.copy_.default
_BATCHED = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)
_PRODUCTS = (
    *(torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.mv.default, torch.ops.aten.addmv.default),
    *(torch.ops.aten.dot.default, torch.ops.aten.vdot.default),
)
_BY_LIBRARY = frozenset(
    (
        *(*_PRODUCTS, *_BATCHED),
        *(torch.ops.aten.linalg_solve_triangular.default, torch.ops.aten._linalg_svd.default),
    )
)
"""Operators to which torch hands marked tensors as they are."""


def _defined(func: OpOverload) -> OpOverload:
    """Return an operator that calls a product with marks on the operands of some positions, which it is told first."""
    schema, name = func._schema, func._schema.name.removeprefix("aten::")

    def marked(positions: Sequence[int], *args: Any, **kwargs: Any) -> Tensor:
        return func(*(arg.conj() if at in positions else arg for at, arg in enumerate(args)), **kwargs)

    _LIBRARY.define(str(schema).replace(f"{schema.name}(", f"{name}(int[] marked, ", 1))
    _LIBRARY.impl(name, marked, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, lambda _positions, *args, **kwargs: func(*args, **kwargs), "Meta")
    return getattr(torch.ops.outgrow, name).default


_MARKED = {func: _defined(func) for func in _PRODUCTS}


class Conjugates:
    """The tensors of one trace that torch would have marked; views of them share their places."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        """By the place of a conjugate itself, and what it is one of. Held, it keeps its place."""
        self._stale: set[int] = set()

    def called(
        self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], call: Callable[..., object]
    ) -> object:
        """Call an operator by `call`, which is `func` itself except for conjugates.

        Raises `Uncapturable` for operators that would see the mark, for writes through it, and for reading a conjugate
        after what it is a view of was written.
        """
        if func is _CONJUGATE:
            (base,) = args
            if isinstance(base, complex):  # a number that the step names, such as 1j
                return torch.ops.aten.scalar_tensor.default(base.conjugate(), dtype=torch.complex128)
            twice = self._base(base) if self._is_made(base) else None
            if twice is not None:
                return torch.ops.aten.alias.default(twice)
            found = torch.ops.aten._conj_physical.default(base)
            assert isinstance(base, Tensor), "a conjugate is one of a tensor"
            self._made[place(found)] = (found, base)
            return found
        if not self._made:
            return call(*args, **kwargs)
        self._check(func, args, kwargs)
        bases = {at: self._base(arg) for at, arg in enumerate(args) if func in _MARKED and self._is_made(arg)}
        if any(base is None for base in bases.values()):
            raise _refusal(func, tensors_of([args[at] for at in bases]))
        if bases:
            return _MARKED[func](list(bases), *(bases.get(at, arg) for at, arg in enumerate(args)), **kwargs)
        return call(*args, **kwargs)

    def _is_made(self, item: object) -> bool:
        return isinstance(item, Tensor) and place(item) in self._made

    def _base(self, tensor: Any) -> Tensor | None:
        """Return what a conjugate, its transpose or part is without the mark; None if it lies otherwise in memory."""
        made, base = self._made[place(tensor)]
        if self._is_made(base):
            return None
        if geometry(tensor) == geometry(made):
            return base
        if made.dim() == 2 and geometry(tensor) == geometry(made.t()):
            return base.t()
        if made.stride() != base.stride():
            return None
        offset = tensor.storage_offset() - made.storage_offset() + base.storage_offset()
        return torch.ops.aten.as_strided.default(base, tensor.shape, tensor.stride(), offset)

    def _check(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        tensors = tensors_of(leaves_of(args, kwargs))
        marked = [tensor for tensor in tensors if place(tensor) in self._made]
        is_on_cpu = all(tensor.device.type == "cpu" for tensor in marked)
        is_resolved = func in _MARKED or func not in _BY_LIBRARY or (func in _BATCHED and is_on_cpu)
        is_copied = func is _COPY and place(tensors[0]) not in self._made
        if marked and ((writes(func) and not is_copied) or not is_resolved):
            raise _refusal(func, marked)
        if any(place(tensor) in self._stale for tensor in marked):
            raise Uncapturable(
                f"the step reads a conjugate of shape {tuple(marked[0].shape)} of a tensor that was written since, "
                "which in eager mode is a view of it; conjugate it after the write"
            )
        if writes(func):
            written = {place(tensor) for tensor in tensors}
            self._stale |= {at for at, (_, base) in self._made.items() if place(base) in written}


def _refusal(func: OpOverload, marked: Sequence[Tensor]) -> Uncapturable:
    return Uncapturable(
        f"the step gives a conjugate of shape {tuple(marked[0].shape)} to {func}, which takes it by a mark that no "
        "plan can hold; write the product for real and imaginary parts, or as torch.bmm on a CPU"
    )
