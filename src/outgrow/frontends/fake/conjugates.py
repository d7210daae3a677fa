"""What becomes of a tensor that is conjugated by a mark alone? It is conjugated in earnest, where it gets the mark.

Torch does not compute a conjugate until somebody reads it; plans hold tensors without marks. Nearly every operator that
is given a marked tensor has it conjugated in memory first, so the bits are the same. Products of matrices hand the mark
on to their library, which may add up in another order: they are refused, but for batches of products on the CPU, which
resolve it as others do.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.arguments import leaves_of, tensors_of, writes
from outgrow.frontends.user.sharing import place

_CONJUGATE, _COPY = torch.ops.aten._conj.default, torch.ops.aten.copy_.default
_BATCHED = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)
_BY_LIBRARY = frozenset(
    (
        *(torch.ops.aten.mm.default, torch.ops.aten.addmm.default, *_BATCHED),
        *(torch.ops.aten.mv.default, torch.ops.aten.addmv.default),
        *(torch.ops.aten.dot.default, torch.ops.aten.vdot.default),
        *(torch.ops.aten.linalg_solve_triangular.default, torch.ops.aten._linalg_svd.default),
    )
)
"""Operators to which torch hands marked tensors as they are."""


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
            found = torch.ops.aten._conj_physical.default(base)
            assert isinstance(base, Tensor), "a conjugate is one of a tensor"
            self._made[place(found)] = (found, base)
            return found
        if self._made:
            self._check(func, args, kwargs)
        return call(*args, **kwargs)

    def _check(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        tensors = tensors_of(leaves_of(args, kwargs))
        marked = [tensor for tensor in tensors if place(tensor) in self._made]
        is_resolved = func not in _BY_LIBRARY or (func in _BATCHED and all(t.device.type == "cpu" for t in marked))
        is_copied = func is _COPY and place(tensors[0]) not in self._made
        if marked and ((writes(func) and not is_copied) or not is_resolved):
            raise Uncapturable(
                f"the step gives a conjugate of shape {tuple(marked[0].shape)} to {func}, which takes it by a mark "
                "that no plan can hold; write the product for real and imaginary parts, or as torch.bmm on a CPU"
            )
        if any(place(tensor) in self._stale for tensor in marked):
            raise Uncapturable(
                f"the step reads a conjugate of shape {tuple(marked[0].shape)} of a tensor that was written since, "
                "which in eager mode is a view of it; conjugate it after the write"
            )
        if writes(func):
            written = {place(tensor) for tensor in tensors}
            self._stale |= {at for at, (_, base) in self._made.items() if place(base) in written}
