"""Operators that make a tensor of nothing but its shape, and those that draw random numbers.

What is made of one number is cut like anything else. Random numbers are not: all workers draw all of them, so that each
has those that it would have alone. Where numbers are drawn into a tensor, what it held before is not read.
"""

from collections.abc import Mapping

from outgrow.ir.layout import contiguous_strides
from outgrow.operators.catalogue.entry import Entry, only_shape, sized, with_argument
from outgrow.operators.tdl import ALL, OperatorCall, OperatorResult, applied, numbered


def made(call: OperatorCall) -> list[OperatorResult | None]:
    """The same number everywhere, or none in particular."""
    return [OperatorResult.at(numbered("i", len(only_shape(call))), applied())]


def drawn(call: OperatorCall) -> list[OperatorResult | None]:
    """Numbers of which each depends on how many were drawn before it."""
    return [None if shape is None else OperatorResult.at(tuple(ALL for _ in shape), applied()) for shape in call.shapes]


def _strided(call: OperatorCall, cut: str) -> OperatorCall:
    """Return how a part is called that says where its elements lie: one behind the other."""
    return with_argument(sized(1)(call, cut), 2, contiguous_strides(only_shape(call)))


_OF_A_SHAPE = ("empty.memory_format", "full.default", "ones.default", "zeros.default")
_LIKE_ANOTHER = ("new_empty.default", "new_full.default", "new_ones.default", "new_zeros.default")
_RANDOM = ("bernoulli.float", "normal.default", "rand.default", "randn.default", "uniform.default")

ENTRIES: Mapping[str, Entry] = {
    **{f"aten.{name}": Entry(made, sized(0)) for name in _OF_A_SHAPE},
    **{f"aten.{name}": Entry(made, sized(1)) for name in _LIKE_ANOTHER},
    "aten.new_empty_strided.default": Entry(made, _strided),
    **{f"aten.{name}": Entry(drawn) for name in _RANDOM},
}
