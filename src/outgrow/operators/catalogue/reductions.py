"""Operators that make many elements one: sums, extremes and means over some dimensions.

A mean is a sum divided by how many there are, so it is not cut where it is taken: the parts would divide by less.
"""

from collections.abc import Callable, Mapping

from outgrow.operators.catalogue.entry import Entry, whole_number
from outgrow.operators.tdl import Argument, Call, Expression, Reducer, Result, applied, numbered, reduced


def over_dimensions(by: Reducer | None) -> Callable[[Call], list[Result | None]]:
    """Return the description of a reduction over the dimensions that its second argument names; none: over all."""

    def describe(call: Call) -> list[Result | None]:
        (x,) = call.operands
        rank = len(x.shape)
        dims = _dimensions(call.arguments[1] if len(call.arguments) > 1 else None, rank)
        keeps = len(call.arguments) > 2 and call.arguments[2] is True
        at = numbered("i", rank)
        over = [at[dim] for dim in dims]
        value: Expression = x[at]
        value = applied(value) if by is None else reduced(by, over, value)
        left = [0 if axis in dims else place for axis, place in enumerate(at) if keeps or axis not in dims]
        return [Result.at(left, value)]

    return describe


def _dimensions(argument: Argument, rank: int) -> tuple[int, ...]:
    if argument is None or argument == ():
        return tuple(range(rank))
    found = argument if isinstance(argument, tuple) else (argument,)
    return tuple(whole_number(item) % rank for item in found)


ENTRIES: Mapping[str, Entry] = {
    "aten.sum.default": Entry(over_dimensions(Reducer.SUM)),
    "aten.sum.dim_IntList": Entry(over_dimensions(Reducer.SUM)),
    "aten.mean.default": Entry(over_dimensions(None)),
    "aten.mean.dim": Entry(over_dimensions(None)),
    "aten.amax.default": Entry(over_dimensions(Reducer.MAX)),
    "aten.amin.default": Entry(over_dimensions(Reducer.MIN)),
    "aten.prod.default": Entry(over_dimensions(Reducer.PROD)),
}
