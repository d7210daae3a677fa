"""Products of matrices."""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry, broadcast
from outgrow.operators.tdl import Call, Result, Sum, indices

n, i, j, k = indices("n i j k")


def mm(call: Call) -> list[Result | None]:
    """A row by a column."""
    x, y = call.operands
    return [Result.at((i, j), Sum((k,), x[i, k] * y[k, j]))]


def bmm(call: Call) -> list[Result | None]:
    """A product for each number of a batch."""
    x, y = call.operands
    return [Result.at((n, i, j), Sum((k,), x[n, i, k] * y[n, k, j]))]


def addmm(call: Call) -> list[Result | None]:
    """A product, and something added to it."""
    bias, x, y = call.operands
    return [Result.at((i, j), broadcast(bias, (i, j)) + Sum((k,), x[i, k] * y[k, j]))]


def baddbmm(call: Call) -> list[Result | None]:
    """A product for each number of a batch, and something added to it."""
    bias, x, y = call.operands
    return [Result.at((n, i, j), broadcast(bias, (n, i, j)) + Sum((k,), x[n, i, k] * y[n, k, j]))]


ENTRIES: Mapping[str, Entry] = {
    f"aten.{describe.__name__}.default": Entry(describe) for describe in (mm, bmm, addmm, baddbmm)
}
