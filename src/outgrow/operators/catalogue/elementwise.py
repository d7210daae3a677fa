"""Operators that compute each element of the result from one element of each operand.

An operand of fewer dimensions, or of size one in some, is read at the same place for all (broadcasting).
"""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry, broadcast, only_shape
from outgrow.operators.dataflow import GATHERED
from outgrow.operators.tdl import OperatorCall, OperatorResult, applied, numbered

_NAMES = (
    "_to_copy abs acos acosh add.Scalar add.Tensor addcdiv addcmul asin asinh atan atan2 atanh "
    "bitwise_and.Tensor bitwise_not bitwise_or.Tensor ceil clamp clamp.Tensor clamp_max clamp_min clone copy cos "
    "cosh detach div.Scalar div.Tensor elu empty_like eq.Scalar eq.Tensor erf exp expm1 fill.Scalar floor "
    "fmod.Tensor full_like ge.Scalar ge.Tensor gelu gelu_backward gt.Scalar gt.Tensor hardsigmoid hardswish "
    "hardtanh isnan le.Scalar le.Tensor leaky_relu leaky_relu_backward lerp.Scalar lerp.Tensor log log1p log2 "
    "logical_and logical_not logical_or lt.Scalar lt.Tensor masked_fill.Scalar maximum minimum mish "
    "mul.Scalar mul.Tensor ne.Scalar ne.Tensor neg ones_like pow.Scalar pow.Tensor_Scalar "
    "pow.Tensor_Tensor reciprocal relu remainder.Tensor round rsqrt rsub.Scalar sgn sigmoid sigmoid_backward "
    "sign silu silu_backward sin sinh softplus softplus_backward sqrt square sub.Scalar sub.Tensor tan tanh "
    "tanh_backward threshold threshold_backward trunc where.self zeros_like"
)


def elementwise(call: OperatorCall) -> list[OperatorResult | None]:
    """Describe a result of which each element is made of the operands' elements at the same place."""
    at = numbered("i", len(only_shape(call)))
    value = applied(*(broadcast(operand, at) for operand in call.operands))
    return [OperatorResult.at(at, value)]


ENTRIES: Mapping[str, Entry] = {
    f"aten.{name if '.' in name else f'{name}.default'}": Entry(elementwise) for name in _NAMES.split()
} | {GATHERED: Entry(elementwise)}
