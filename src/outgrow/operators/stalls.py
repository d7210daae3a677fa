"""How many times as long does an operator take where it writes over an operand? Mostly once, or less.

What is written is then already in the processor's cache. One kernel stalls: group normalisation's backward in
channels-last, which goes over a place group by group. Where a group has fewer channels than a vector holds, it stores a
part of a vector, then loads one that begins behind it; where both lie in the same memory, the load has to wait for the
store (`benchmarks/results/stalls.json`).
"""

from collections.abc import Mapping

from outgrow.ir.graph import Op, Value
from outgrow.ir.layout import is_channels_last

_FACTORS: Mapping[str, float] = {
    "over0.aten.native_group_norm_backward.default": 1.6,
    "over1.aten.native_group_norm_backward.default": 1.4,
}
_SOURCE, _MEAN = 1, 2
"""Positions of the operand, N x channels x ..., and of its means, N x groups."""
_DTYPE, _VECTOR = "float32", 8
"""Others are converted on the way, into memory of their own."""


def slowdown(values: Mapping[str, Value], op: Op, form: str | None = None) -> float:
    """Return how many times as long as its operator a form takes: that of an op, or the one that it might have."""
    factor = _FACTORS.get(form or op.operator)
    if factor is None:
        return 1.0
    source, mean = values[op.references[_SOURCE]], values[op.references[_MEAN]]
    is_narrow = source.shape[1] < mean.shape[1] * _VECTOR
    return factor if source.dtype == _DTYPE and is_channels_last(source.shape, source.strides) and is_narrow else 1.0
