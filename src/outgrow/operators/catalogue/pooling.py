"""Pools in one to three dimensions: the largest or the mean of a window.

A largest element is found again by its number in the whole plane, so the numbers are not cut in space.
"""

from collections.abc import Callable, Mapping

from outgrow.operators.catalogue.entry import Entry
from outgrow.operators.tdl import ALL, OperatorCall, OperatorResult, applied, indices

b, c = indices("b c")


def by_planes(space: int) -> Callable[[OperatorCall], list[OperatorResult | None]]:
    """Return the description of a pool in this many dimensions: each plane by itself, with a batch or without."""

    def describe(call: OperatorCall) -> list[OperatorResult | None]:
        has_batch = len(call.operands[0].shape) > space + 1
        at = (*((b, c) if has_batch else (c,)), *(ALL,) * space)
        read = applied(*(operand[at] for operand in call.operands))
        return [None if shape is None else OperatorResult.at(at, read) for shape in call.shapes]

    return describe


_IN_TWO_DIMENSIONS = (
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
)
_IN_THREE_DIMENSIONS = (
    "max_pool3d_with_indices",
    "max_pool3d_with_indices_backward",
    "avg_pool3d",
    "avg_pool3d_backward",
)
ENTRIES: Mapping[str, Entry] = {
    f"aten.{name}.default": entry
    for entry, names in ((Entry(by_planes(2)), _IN_TWO_DIMENSIONS), (Entry(by_planes(3)), _IN_THREE_DIMENSIONS))
    for name in names
}
