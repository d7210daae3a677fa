"""Which strides has an elementwise result where an operand is broadcast, as the gradient of a sum is?

Kernels of two operands (torch's TensorIterator) order the dimensions of their result by the strides of both, whatever
the dtype. Abstract implementations in half precision first convert the operands, and the copies are no longer
broadcast, so a result that should be channels-last comes out contiguous. Some do so in every precision.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from outgrow.frontends.fake.layouts import relaid, repeats, without_memory

_aten = torch.ops.aten
ITERATED = frozenset(
    (
        *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.pow.Tensor_Tensor),
        *(_aten.fmod.Tensor, _aten.remainder.Tensor, _aten.atan2.default, _aten.hypot.default, _aten.heaviside.default),
        *(_aten.maximum.default, _aten.minimum.default, _aten.fmax.default, _aten.fmin.default),
        *(_aten.clamp_max.Tensor, _aten.clamp_min.Tensor, _aten.logaddexp.default, _aten.logaddexp2.default),
        *(_aten.eq.Tensor, _aten.ne.Tensor, _aten.lt.Tensor, _aten.le.Tensor, _aten.gt.Tensor, _aten.ge.Tensor),
        *(_aten.logical_and.default, _aten.logical_or.default, _aten.logical_xor.default),
        *(_aten.div.Tensor_mode, _aten.floor_divide.default, _aten.copysign.Tensor, _aten.xlogy.Tensor),
        *(_aten.special_xlog1py.default, _aten.complex.default, _aten.polar.default),
        *(_aten.sigmoid_backward.default, _aten.tanh_backward.default),
        *(_aten.silu_backward.default, _aten.gelu_backward.default),
    )
)
"""Operators whose results lie as the sum of their operands would in fp32, if these are of one type."""


def as_iterated(_func: OpOverload, args: Sequence[object], returned: object) -> object:
    """Return the fake result of one of `ITERATED` with the strides that its kernel gives."""
    operands = [arg for arg in args if isinstance(arg, Tensor)]
    if not isinstance(returned, Tensor) or len(operands) != 2:
        return returned
    one, other = operands
    if one.dtype != other.dtype:
        return returned
    if not any(operand.shape != returned.shape or repeats(operand) for operand in operands):
        return returned
    with no_dispatch():
        strides = (without_memory(one, torch.float32) + without_memory(other, torch.float32)).stride()
    return relaid(returned, strides)
