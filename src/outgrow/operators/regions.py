"""Which part of each operand does a part of a result need? Interval analysis of the places that it reads.

    box      a range begin:end for each variable
    region   a range for each dimension of an operand: the hull of all places that are read, also beyond its bounds

A hull may hold places that are not read: every other one, where the stride is two. That only costs bytes, as long as
the operator finds each element where its own description says (`strategies` checks this).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

from outgrow.operators.tdl import Atom, Description, Floor, Place, Remainder, Variable

Range: TypeAlias = tuple[int, int]
Box: TypeAlias = Mapping[str, Range]
Region: TypeAlias = tuple[Range, ...]


def hull(place: Place, box: Box) -> Range:
    """Return the smallest range that holds a place for all values of its variables.

    >>> from outgrow.operators.tdl import indices
    >>> i, d = indices("i d")
    >>> hull(2 * i + d - 1, {"i": (0, 4), "d": (0, 3)}), hull((i + 2) % 4, {"i": (0, 2), "d": (0, 3)})
    ((-1, 8), (2, 4))
    """
    low = high = place.constant
    for atom, factor in place.terms:
        begin, end = _bounds(atom, box)
        low += factor * (begin if factor > 0 else end - 1)
        high += factor * (end - 1 if factor > 0 else begin)
    return (low, high + 1)


def _bounds(atom: Atom, box: Box) -> Range:
    match atom:
        case Variable(name):
            return box[name]
        case Floor(of, by):
            begin, end = hull(of, box)
            return (begin // by, (end - 1) // by + 1)
        case Remainder(of, by):
            begin, end = hull(of, box)
            is_in_one_turn = begin // by == (end - 1) // by
            return (begin % by, (end - 1) % by + 1) if is_in_one_turn else (0, by)


def simplified(place: Place, box: Box) -> Place:
    """Return a place without variables that have one value in a box, and without `//` and `%` that go nowhere in it.

    >>> from outgrow.operators.tdl import indices
    >>> (i,) = indices("i")
    >>> simplified(i // 4 * 3, {"i": (4, 8)}), simplified(i % 4 + 1, {"i": (4, 8)}) == i - 3
    (Place(terms=(), constant=3), True)
    """
    found = Place((), place.constant)
    for atom, factor in place.terms:
        found = found + _simplified(atom, box) * factor
    return found


def _simplified(atom: Atom, box: Box) -> Place:
    if isinstance(atom, Variable):
        begin, end = box[atom.name]
        return Place((), begin) if end == begin + 1 else Place(((atom, 1),))
    of = simplified(atom.of, box)
    begin, end = hull(of, box)
    turn = begin // atom.by
    if turn != (end - 1) // atom.by:
        return of // atom.by if isinstance(atom, Floor) else of % atom.by
    return Place((), turn) if isinstance(atom, Floor) else of - atom.by * turn


def regions(description: Description, box: Box, cut: str) -> dict[int, Region]:
    """Return, by operand, the hull of all that is read where the variable `cut` is within its range of a box.

    If some place along a dimension does not depend on `cut`, the whole dimension is needed.
    """
    found = dict(description.read)
    for operand, dim in description.depending.get(cut, ()):
        reach = _reach(description.places[operand][dim], description.shapes[operand][dim], box, cut)
        found[operand] = (*found[operand][:dim], reach, *found[operand][dim + 1 :])
    return found


def _reach(places: Sequence[Place | None], size: int, box: Box, cut: str) -> Range:
    hulls = [hull(place, box) if place is not None and cut in place.variables else (0, size) for place in places]
    return (min(begin for begin, _ in hulls), max(end for _, end in hulls))


def whole(shape: tuple[int, ...]) -> Region:
    """Return the region that is all of a tensor."""
    return tuple((0, size) for size in shape)


def within(box: Region, shape: tuple[int, ...]) -> Region:
    """Return the part of a box that lies within a shape."""
    return tuple((max(begin, 0), min(end, size)) for (begin, end), size in zip(box, shape, strict=True))


def shape_of(box: Region) -> tuple[int, ...]:
    """Return the shape of a tensor that is this box."""
    return tuple([end - begin for begin, end in box])


def volume(box: Region) -> int:
    """Return how many elements a box has."""
    return prod(shape_of(box))
