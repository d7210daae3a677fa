"""Products of matrices."""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry
from outgrow.operators.tdl import Call, Expression, Operand, Place, Result, Sum, indices

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
    return [Result.at((i, j), _broadcast(bias, (i, j)) + Sum((k,), x[i, k] * y[k, j]))]


def baddbmm(call: Call) -> list[Result | None]:
    """A product for each number of a batch, and something added to it."""
    bias, x, y = call.operands
    return [Result.at((n, i, j), _broadcast(bias, (n, i, j)) + Sum((k,), x[n, i, k] * y[n, k, j]))]


def _broadcast(bias: Operand, at: tuple[Place, ...]) -> Expression:
    places = at[len(at) - len(bias.shape) :]
    return bias[tuple(0 if size == 1 else place for place, size in zip(places, bias.shape, strict=True))]


ENTRIES: Mapping[str, Entry] = {
    f"aten.{describe.__name__}.default": Entry(describe) for describe in (mm, bmm, addmm, baddbmm)
}
