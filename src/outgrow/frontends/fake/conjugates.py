"""What becomes of a tensor that is conjugated by a mark alone? It is conjugated in earnest, where it gets the mark.

Torch does not compute a conjugate until somebody reads it; plans hold tensors without marks. Nearly every operator that
is given a marked tensor has it conjugated in memory first, so the bits are the same. Products of matrices hand the mark
on to their library, which may add up in another order: they are refused, but for batches of products on the CPU, which
resolve it as others do.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.sharing import place

_CONJUGATE = torch.ops.aten._conj.default
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
    """The tensors of one trace that torch would have marked."""

    def __init__(self) -> None:
        self._by_place: dict[int, Tensor] = {}

    def called(
        self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], call: Callable[..., object]
    ) -> object:
        """Call an operator by `call`, which is `func` itself but for conjugates.

        Raises `Uncapturable` for operators that would see the mark, and for writes through it.
        """
        if func is _CONJUGATE:
            found = torch.ops.aten._conj_physical.default(*args)
            self._by_place[place(found)] = found
            return found
        if self._by_place and (func in _BY_LIBRARY or func._schema.is_mutable):
            self._check(func, args, kwargs)
        return call(*args, **kwargs)

    def _check(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        marked = [tensor for tensor in tensors if place(tensor) in self._by_place]
        is_resolved = func in _BATCHED and all(tensor.device.type == "cpu" for tensor in marked)
        if marked and not is_resolved:
            raise Uncapturable(
                f"the step gives a conjugate of shape {tuple(marked[0].shape)} to {func}, which takes it by a mark "
                "that no plan can hold; write the product for real and imaginary parts, or as torch.bmm on a CPU"
            )
