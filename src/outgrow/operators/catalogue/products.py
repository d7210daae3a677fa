"""Products of matrices."""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry, broadcast
from outgrow.operators.tdl import OperatorCall, OperatorResult, Sum, indices

n, i, j, k = indices("n i j k")


def mm(call: OperatorCall) -> list[OperatorResult | None]:
    """A row by a column."""
    x, y = call.operands
    return [OperatorResult.at((i, j), Sum((k,), x[i, k] * y[k, j]))]


def bmm(call: OperatorCall) -> list[OperatorResult | None]:
    """A product for each number of a batch."""
    x, y = call.operands
    return [OperatorResult.at((n, i, j), Sum((k,), x[n, i, k] * y[n, k, j]))]


def addmm(call: OperatorCall) -> list[OperatorResult | None]:
    """A product, and something added to it."""
    bias, x, y = call.operands
    return [OperatorResult.at((i, j), broadcast(bias, (i, j)) + Sum((k,), x[i, k] * y[k, j]))]


def baddbmm(call: OperatorCall) -> list[OperatorResult | None]:
    """A product for each number of a batch, and something added to it."""
    bias, x, y = call.operands
    return [OperatorResult.at((n, i, j), broadcast(bias, (n, i, j)) + Sum((k,), x[n, i, k] * y[n, k, j]))]


ENTRIES: Mapping[str, Entry] = {
    f"aten.{describe.__name__}.default": Entry(describe) for describe in (mm, bmm, addmm, baddbmm)
}
