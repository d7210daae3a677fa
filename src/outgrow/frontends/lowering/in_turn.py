"""The kernels that put operands side by side, one after the other (`operators.in_turn`)."""

from collections.abc import Sequence

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("outgrow_kernels", "FRAGMENT")


def _begin(operand: Tensor, size: Sequence[int], stride: Sequence[int], dim: int, start: int) -> Tensor:
    """Return a new tensor with the operand in its place; what is beside that is not written yet."""
    return _put(operand.new_empty_strided(size, stride), operand, dim, start)


def _put(result: Tensor, operand: Tensor, dim: int, start: int) -> Tensor:
    """Copy the operand to its place in the result."""
    part = operand if operand.dim() == result.dim() else operand.unsqueeze(dim)
    result.narrow(dim, start, part.shape[dim]).copy_(part)
    return result


_LIBRARY.define("begin(Tensor operand, int[] size, int[] stride, int dim, int start) -> Tensor")
_LIBRARY.define("put_(Tensor(a!) result, Tensor operand, int dim, int start) -> Tensor(a!)")
_LIBRARY.impl("begin", _begin, "CompositeExplicitAutograd")
_LIBRARY.impl("put_", _put, "CompositeExplicitAutograd")
