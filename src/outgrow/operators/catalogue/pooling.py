"""Pools in one to three dimensions: the largest or the mean of a window.

A largest element is found again by its number in the whole plane, so the numbers are not cut in space.
"""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry
from outgrow.operators.tdl import ALL, Call, Result, applied, indices

b, c = indices("b c")


def by_planes(call: Call) -> list[Result | None]:
    """Each plane of a channel by itself, whatever is done to it."""
    read = applied(*(operand[b, c, *(ALL for _ in operand.shape[2:])] for operand in call.operands))
    shapes = call.shapes
    return [None if shape is None else Result.at((b, c, *(ALL for _ in shape[2:])), read) for shape in shapes]


ENTRIES: Mapping[str, Entry] = {
    f"aten.{name}.default": Entry(by_planes)
    for name in (
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
        "avg_pool2d",
        "avg_pool2d_backward",
        "avg_pool3d",
        "avg_pool3d_backward",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
    )
}
