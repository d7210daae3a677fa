"""Operators that make many elements one: sums, extremes and means over some dimensions.

A mean is computed as a sum, which is partial, divided by how many there are (`Entry.divisor`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from outgrow.operators.catalogue.entry import Entry, dimension
from outgrow.operators.tdl import OperatorCall, OperatorResult, Reducer, numbered, reduced


def over_dimensions(by: Reducer) -> Callable[[OperatorCall], list[OperatorResult | None]]:
    """Return the description of a reduction over the dimensions that its second argument names; none: over all."""

    def describe(call: OperatorCall) -> list[OperatorResult | None]:
        (x,) = call.operands
        rank = len(x.shape)
        dims = _reduced(call)
        keeps = len(call.arguments) > 2 and call.arguments[2] is True
        at = numbered("i", rank)
        over = [at[dim] for dim in dims]
        value = reduced(by, over, x[at])
        left = [0 if axis in dims else place for axis, place in enumerate(at) if keeps or axis not in dims]
        return [OperatorResult.at(left, value)]

    return describe


def _as_a_sum(call: OperatorCall, _cut: str) -> OperatorCall:
    return replace(call, operator="aten.sum.dim_IntList" if len(call.arguments) > 1 else "aten.sum.default")


def _count(call: OperatorCall) -> int:
    (x,) = call.operands
    return prod(x.shape[dim] for dim in _reduced(call))


def _reduced(call: OperatorCall) -> tuple[int, ...]:
    """Return the dimensions that a call reduces over."""
    (x,) = call.operands
    argument = call.arguments[1] if len(call.arguments) > 1 else None
    if argument is None or argument == ():
        return tuple(range(len(x.shape)))
    found = argument if isinstance(argument, tuple) else (argument,)
    return tuple(dimension(item, len(x.shape)) for item in found) if x.shape else ()


ENTRIES: Mapping[str, Entry] = {
    "aten.sum.default": Entry(over_dimensions(Reducer.SUM)),
    "aten.sum.dim_IntList": Entry(over_dimensions(Reducer.SUM)),
    "aten.mean.default": Entry(over_dimensions(Reducer.SUM), _as_a_sum, divisor=_count),
    "aten.mean.dim": Entry(over_dimensions(Reducer.SUM), _as_a_sum, divisor=_count),
    "aten.amax.default": Entry(over_dimensions(Reducer.MAX)),
    "aten.amin.default": Entry(over_dimensions(Reducer.MIN)),
    "aten.prod.default": Entry(over_dimensions(Reducer.PROD)),
}
