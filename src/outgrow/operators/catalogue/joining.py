"""Operators that take tensors apart along one dimension, or put several together there. They are cut along the others.

A slice is cut along its own dimension as well: its elements lie at multiples of its step.
"""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry, all_of, dimension, only_shape, sized, whole_number, with_argument
from outgrow.operators.tdl import OperatorCall, OperatorResult, applied, numbered


def cat(call: OperatorCall) -> list[OperatorResult | None]:
    """Operands one behind the other. Not described where one is the empty tensor that fits to any other."""
    first = call.operands[0]
    if any(len(operand.shape) != len(first.shape) for operand in call.operands):
        return [None]
    at = all_of(call.arguments[1], len(first.shape))
    return [OperatorResult.at(at, applied(*(operand[at] for operand in call.operands)))]


def stack(call: OperatorCall) -> list[OperatorResult | None]:
    """Operands beside each other, in a new dimension."""
    rank = len(call.operands[0].shape) + 1
    axis = dimension(call.arguments[1], rank)
    at = all_of(axis, rank)
    inner = (*at[:axis], *at[axis + 1 :])
    return [OperatorResult.at(at, applied(*(operand[inner] for operand in call.operands)))]


def apart(call: OperatorCall) -> list[OperatorResult | None]:
    """Parts of the operand that lie behind each other, of whatever lengths."""
    (x,) = call.operands
    at = all_of(call.arguments[2], len(x.shape))
    return [None if shape is None else OperatorResult.at(at, x[at]) for shape in call.shapes]


def taken_out(call: OperatorCall) -> list[OperatorResult | None]:
    """One part of length one, or all of them, without their dimension."""
    (x,) = call.operands
    value = x[all_of(call.arguments[1], len(x.shape))]
    places = [place for place in value.places if place is not None]
    return [None if shape is None else OperatorResult.at(places, value) for shape in call.shapes]


def slice_tensor(call: OperatorCall) -> list[OperatorResult | None]:
    """Every element from a place on, at multiples of a step."""
    (x,) = call.operands
    axis, step = dimension(call.arguments[1], len(x.shape)), whole_number(call.arguments[4])
    start, size = whole_number(call.arguments[2] or 0), x.shape[axis]
    begin = min(max(start + size if start < 0 else start, 0), size)
    i = numbered("i", len(x.shape))
    return [OperatorResult.at(i, x[tuple(place * step + begin if at == axis else place for at, place in enumerate(i))])]


def _sliced(call: OperatorCall, cut: str) -> OperatorCall:
    """Return how a part of a slice is called: from its own beginning on, where it is cut."""
    (x,) = call.operands
    axis = dimension(call.arguments[1], len(x.shape))
    if cut != f"i{axis}":
        return call
    return with_argument(with_argument(call, 2, 0), 3, x.shape[axis])


def of_a_part(call: OperatorCall) -> list[OperatorResult | None]:
    """A gradient that is zero except in a part."""
    (y,) = call.operands
    rank = len(only_shape(call))
    axis = dimension(call.arguments[2], rank)
    at = all_of(axis, rank)
    read = at if len(y.shape) == rank else (*at[:axis], *at[axis + 1 :])
    return [OperatorResult.at(at, applied(y[read]))]


ENTRIES: Mapping[str, Entry] = {
    "aten.cat.default": Entry(cat),
    "aten.stack.default": Entry(stack),
    "aten.split.Tensor": Entry(apart),
    "aten.split_with_sizes.default": Entry(apart),
    "aten.unbind.int": Entry(taken_out),
    "aten.select.int": Entry(taken_out),
    "aten.slice.Tensor": Entry(slice_tensor, _sliced),
    "aten.slice_backward.default": Entry(of_a_part, sized(1)),
    "aten.select_backward.default": Entry(of_a_part, sized(1)),
}
