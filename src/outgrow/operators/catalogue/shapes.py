"""Operators that compute nothing: they say where an element of the operand is found in the result.

Dimensions that are joined or divided are read off both shapes (`view`). They can be cut where the pieces keep the form:
a joined dimension at multiples of its inner part.
"""

from collections.abc import Mapping, Sequence
from math import prod

from outgrow.operators.catalogue.entry import Entry, broadcast, dimension, only_shape, sized, whole_number
from outgrow.operators.tdl import ALL, All, Argument, OperatorCall, OperatorResult, Place, numbered


def view(call: OperatorCall) -> list[OperatorResult | None]:
    """The same elements in the same order, in other dimensions."""
    (x,) = call.operands
    shape = only_shape(call)
    if prod(x.shape) != prod(shape):
        return [None]
    i = numbered("i", len(shape))
    at: list[Place | All | int] = list(i)
    read: list[Place | All | int] = []
    for inner, outer in _blocks(x.shape, shape):
        if len(inner) == 1:
            read.append(_joined([i[axis] for axis in outer], [shape[axis] for axis in outer]))
        elif len(outer) == 1:
            read += _divided(i[outer[0]], [x.shape[axis] for axis in inner])
        elif inner:
            read += [ALL for _ in inner]
            for axis in outer:
                at[axis] = ALL
    return [OperatorResult.at(at, x[tuple(read)])]


def _blocks(one: Sequence[int], other: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return which dimensions of two shapes hold the same elements, in the smallest blocks that do."""
    blocks: list[tuple[list[int], list[int]]] = []
    left, right = 0, 0
    while left < len(one) or right < len(other):
        block: tuple[list[int], list[int]] = ([], [])
        sizes = [1, 1]
        while not (block[0] and block[1]) or sizes[0] != sizes[1]:
            takes_left = left < len(one) and (not block[0] or sizes[0] < sizes[1])
            if not takes_left and right == len(other):
                break
            if takes_left:
                block[0].append(left)
                sizes[0] *= one[left]
                left += 1
            else:
                block[1].append(right)
                sizes[1] *= other[right]
                right += 1
        blocks.append(block)
    return blocks


def _joined(places: Sequence[Place], sizes: Sequence[int]) -> Place | int:
    """Return the place in a dimension that is cut into several."""
    found = Place()
    for place, size in zip(places, sizes, strict=True):
        found = found * size + (place if size > 1 else 0)
    return found


def _divided(place: Place, sizes: Sequence[int]) -> list[Place | int]:
    """Return the places in several dimensions that were joined into one."""
    found: list[Place | int] = []
    for at, size in enumerate(sizes):
        outer = place // prod(sizes[at + 1 :])
        is_first = prod(sizes[:at]) == 1
        found.append(0 if size == 1 else outer if is_first else outer % size)
    return found


def permute(call: OperatorCall) -> list[OperatorResult | None]:
    """The dimensions in another order."""
    (x,) = call.operands
    return _in_order(call, [number % len(x.shape) for number in _numbers(call.arguments[1])])


def transpose(call: OperatorCall) -> list[OperatorResult | None]:
    """Two dimensions exchanged."""
    (x,) = call.operands
    order = list(range(len(x.shape)))
    if order:
        one, other = (dimension(item, len(order)) for item in call.arguments[1:3])
        order[one], order[other] = order[other], order[one]
    return _in_order(call, order)


def t(call: OperatorCall) -> list[OperatorResult | None]:
    """Rows for columns."""
    (x,) = call.operands
    return _in_order(call, list(range(len(x.shape)))[::-1])


def _in_order(call: OperatorCall, order: Sequence[int]) -> list[OperatorResult | None]:
    (x,) = call.operands
    i = numbered("i", len(order))
    read: dict[int, Place] = {axis: i[at] for at, axis in enumerate(order)}
    return [OperatorResult.at(i, x[tuple(read[axis] for axis in range(len(order)))])]


def expand(call: OperatorCall) -> list[OperatorResult | None]:
    """Dimensions of size one become larger, and new ones come first."""
    (x,) = call.operands
    i = numbered("i", len(only_shape(call)))
    return [OperatorResult.at(i, broadcast(x, i))]


def unsqueeze(call: OperatorCall) -> list[OperatorResult | None]:
    """A dimension of size one."""
    (x,) = call.operands
    rank = len(x.shape) + 1
    i = numbered("i", rank)
    new = dimension(call.arguments[1], rank)
    at = [0 if axis == new else place for axis, place in enumerate(i)]
    return [OperatorResult.at(at, x[tuple(place for axis, place in enumerate(i) if axis != new)])]


def _numbers(argument: Argument) -> list[int]:
    assert isinstance(argument, tuple), f"{argument} are whole numbers"
    return [whole_number(item) for item in argument]


ENTRIES: Mapping[str, Entry] = {
    "aten.view.default": Entry(view, sized(1)),
    "aten.reshape.default": Entry(view, sized(1)),
    "aten._unsafe_view.default": Entry(view, sized(1)),
    "aten.permute.default": Entry(permute),
    "aten.transpose.int": Entry(transpose),
    "aten.t.default": Entry(t),
    "aten.expand.default": Entry(expand, sized(1)),
    "aten.unsqueeze.default": Entry(unsqueeze),
}
