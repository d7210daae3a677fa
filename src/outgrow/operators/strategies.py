"""In which ways can an operator be computed by several workers, each with parts of the operands? Partition-n-reduce.

A strategy cuts one variable of an operator's description into ranges, one for each worker. A result of which it is a
coordinate is then *split* along that dimension; one that is a reduction over it is *partial*, and is the reduction of
what the workers give; one that has nothing to do with it is the *same* everywhere. What each worker needs of the
operands follows (`regions`), and none of it is written by hand.

A worker runs the operator itself on its parts. Four conditions make that right, and are checked for every piece:

1. Each result is split, partial or the same: the variable is a coordinate, or an outermost reduction is over it.
2. What is added to a reduction, a bias say, is a bare operand: all workers but the first take zeros for it.
3. Cuts lie where `//` and `%` allow it: at multiples of what they divide by.
4. The call on parts, described by itself, reads at every coordinate the element that the whole call reads there:
   its place in the part, plus where the part begins, is the whole call's place. This is an equation of places.

The fourth finds cuts in the midst of a group of a convolution, and through the inner one of two joined dimensions.
Source: Tofu (Wang, Huang, Li, EuroSys 2019, section 4), where regions alone decide.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, repeat
from math import gcd, lcm
from typing import NamedTuple, TypeAlias

from outgrow.operators.catalogue import entry_of
from outgrow.operators.regions import Range, Region, regions, shape_of, simplified
from outgrow.operators.tdl import (
    Added,
    Argument,
    Atom,
    Description,
    Element,
    Operand,
    OperatorCall,
    OperatorResult,
    Place,
    Reduced,
    Reducer,
    Shape,
    Variable,
    described,
)


@dataclass(frozen=True, slots=True)
class Split:
    """Each worker gives a part along this dimension."""

    dim: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Each worker gives a tensor of the whole shape; the result is their reduction."""

    by: Reducer


@dataclass(frozen=True, slots=True)
class Same:
    """Each worker gives the whole result."""


Outcome: TypeAlias = Split | Partial | Same | None


@dataclass(frozen=True, slots=True)
class Strategy:
    """A variable to cut at multiples of `step`, and what becomes of each result.

    `once` are operands that all workers but the first replace by zeros.
    """

    cut: str
    step: int
    outcomes: tuple[Outcome, ...]
    once: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one worker does: the range of the variable, what it reads of each operand, and the call that it runs.

    Operands without a region are not read. A region may begin before its operand, or end behind it; the elements there
    are `fill`. What the call gives is divided by `divisor`.
    """

    bounds: Range
    regions: Mapping[int, Region]
    call: OperatorCall
    zeros: tuple[int, ...]
    fill: float
    divisor: int


@cache
def description(call: OperatorCall) -> Description | None:
    """Return what a call computes; None where the catalogue does not describe each result, or a tensor is a keyword."""
    return _described(call)


def _described(call: OperatorCall) -> Description | None:
    """Return the description of a call without keeping it: most pieces are looked at only once."""
    entry = entry_of(call.operator)
    if entry is None or call.named_operands:
        return None
    results = entry.describe(call)
    is_whole = all((result is None) == (shape is None) for result, shape in zip(results, call.shapes, strict=True))
    return described(call, results) if is_whole else None


@cache
def strategies(call: OperatorCall, workers: int = 2) -> tuple[Strategy, ...]:
    """Return the ways to compute a call with this many workers, in the order in which its variables are named.

    >>> x, y = Operand(0, (4, 6)), Operand(1, (6, 8))
    >>> for strategy in strategies(OperatorCall("aten.mm.default", (x, y), ((4, 8),))):
    ...     print(strategy.cut, *strategy.outcomes)
    i Split(dim=0)
    j Split(dim=1)
    k Partial(by=<Reducer.SUM: 'sum'>)
    """
    found = description(call)
    if found is None:
        return ()
    candidates = (_strategy(found, cut) for cut in found.extents)
    return tuple(item for item in candidates if item and _is_right(call, found, item, workers))


@cache
def pieces(call: OperatorCall, strategy: Strategy, workers: int) -> tuple[Piece, ...]:
    """Return what each worker does; equal calls are one object."""
    found = description(call)
    entry = entry_of(call.operator)
    assert found is not None, "a strategy is one of a described call"
    assert entry is not None, "a strategy is one of a described call"
    calls: dict[tuple[tuple[Shape, ...], tuple[Shape | None, ...]], OperatorCall] = {}
    made: list[Piece] = []
    for worker, bounds in enumerate(chunks(found.extents[strategy.cut], workers, strategy.step)):
        needed = regions(found, {**found.box, strategy.cut: bounds}, strategy.cut)
        cut = dict.fromkeys(operand for operand, _ in found.depending.get(strategy.cut, ()))
        sizes = {operand: shape_of(needed[operand]) for operand in cut}
        results = tuple(map(_local, call.shapes, strategy.outcomes, repeat(bounds)))
        key = tuple(sizes.values()), results
        if key not in calls:
            parted = OperatorCall(call.operator, _with_shapes(call.arguments, sizes), results, call.keywords)
            calls[key] = entry.adapt(parted, strategy.cut)
        zeros = strategy.once if worker else ()
        made.append(Piece(bounds, needed, calls[key], zeros, entry.fill, entry.divisor(call)))
    return tuple(made)


def _strategy(found: Description, cut: str) -> Strategy | None:
    """Return the strategy that cuts a variable, by conditions 1 to 3; None if there is none."""
    outcomes: list[Outcome] = []
    once: list[int] = []
    for result in found.results:
        outcome = None if result is None else _outcome(result, cut)
        addends = _addends(result, cut) if result is not None and isinstance(outcome, Partial) else []
        if addends is None or (outcome is None and result is not None):
            return None
        outcomes.append(outcome)
        once += addends
    if all(outcome is None or isinstance(outcome, Same) for outcome in outcomes):
        return None
    return Strategy(cut, _step(found, cut), tuple(outcomes), tuple(dict.fromkeys(once)))


def _outcome(result: OperatorResult, cut: str) -> Outcome:
    if cut in result.dims:
        return Split(result.dims.index(cut))
    if not any(_mentions(element, cut) for element in result.elements):
        return Same()
    parts = result.value.parts if isinstance(result.value, Added) else (result.value,)
    reducers = {part.by for part in parts if isinstance(part, Reduced) and cut in part.over}
    if len(reducers) == 1 and (len(parts) == 1 or reducers == {Reducer.SUM}):
        return Partial(*reducers)
    return None


def _addends(result: OperatorResult, cut: str) -> list[int] | None:
    """Return the operands that are added to reductions over a variable (condition 2); None where others are."""
    found: list[int] = []
    for part in result.value.parts if isinstance(result.value, Added) else (result.value,):
        if isinstance(part, Reduced) and cut in part.over:
            continue
        if not isinstance(part, Element) or _mentions(part, cut):
            return None
        found.append(part.operand)
    read = [element.operand for element in result.elements]
    return found if all(read.count(operand) == 1 for operand in found) else None


def _mentions(element: Element, cut: str) -> bool:
    return any(place is not None and cut in place.variables for place in element.places)


def _step(found: Description, cut: str) -> int:
    """Return what cuts are multiples of (condition 3)."""
    places = (place for read in found.places.values() for along in read for place in along if place is not None)
    return lcm(*(step for place in places if cut in place.variables for step in _steps(place, cut)))


def _steps(place: Place, cut: str) -> Iterator[int]:
    for atom, _ in place.terms:
        if not isinstance(atom, Variable):
            factor = dict[Atom, int](atom.of.terms).get(Variable(cut), 0)
            yield atom.by // gcd(atom.by, factor) if factor else 1
            yield from _steps(atom.of, cut)


@cache
def chunks(size: int, count: int, step: int = 1) -> tuple[Range, ...]:
    """Return ranges of one length, a multiple of a step; the last ones are shorter, or empty. As `torch.chunk` does.

    >>> chunks(10, 4), chunks(10, 2, step=4)
    (((0, 3), (3, 6), (6, 9), (9, 10)), ((0, 8), (8, 10)))
    """
    length = step * -(-size // (count * step))
    return tuple(pairwise(min(size, length * at) for at in range(count + 1)))


def _local(shape: Shape | None, outcome: Outcome, bounds: Range) -> Shape | None:
    if shape is None or not isinstance(outcome, Split):
        return shape
    begin, end = bounds
    return (*shape[: outcome.dim], end - begin, *shape[outcome.dim + 1 :])


def _with_shapes(arguments: tuple[Argument, ...], sizes: Mapping[int, Shape]) -> tuple[Argument, ...]:
    return tuple(
        Operand(item.position, sizes[item.position])
        if isinstance(item, Operand) and item.position in sizes
        else _with_shapes(item, sizes)
        if isinstance(item, tuple)
        else item
        for item in arguments
    )


def _is_right(call: OperatorCall, found: Description, strategy: Strategy, workers: int) -> bool:
    """Whether every worker has something to do, and its call reads what the whole call reads (condition 4).

    An equation of places that several pieces or elements share is checked once.
    """
    if any(begin == end for begin, end in chunks(found.extents[strategy.cut], workers, strategy.step)):
        return False
    equations: dict[tuple[int, ...], _Equation] = {}
    known: dict[int, Description | None] = {}
    for piece in pieces(call, strategy, workers):
        if id(piece.call) not in known:
            known[id(piece.call)] = _described(piece.call)
        local = known[id(piece.call)]
        if local is None or not _has_the_same(local, found):
            return False
        for mine, other in zip(local.elements, found.elements, strict=True):
            for place, whole, (begin, _) in zip(mine.places, other.places, piece.regions[mine.operand], strict=True):
                is_cut = whole is not None and strategy.cut in whole.variables
                if place is whole and not begin and not is_cut:
                    continue
                by = piece.bounds[0] if is_cut else 0
                key = (id(local), id(place), id(whole), begin, by)
                if key not in equations:
                    equations[key] = _Equation(local, place, whole, begin, by)
    return all(_holds(equation, strategy.cut) for equation in equations.values())


def _has_the_same(local: Description, found: Description) -> bool:
    """Whether the part reads the operands that the whole reads, one after the other."""
    return [element.operand for element in local.elements] == [element.operand for element in found.elements]


class _Equation(NamedTuple):
    """At all coordinates, a place in a part, plus where the part begins, is one of the whole, with `cut` shifted."""

    local: Description
    place: Place | None
    whole: Place | None
    begin: int
    by: int


def _holds(equation: _Equation, cut: str) -> bool:
    local, place, whole, begin, by = equation
    if place is None or whole is None:
        return place is whole and not begin
    mine, theirs = place + begin, whole.shifted(cut, by)
    is_told = theirs.variables <= local.box.keys()
    return mine == theirs or (is_told and simplified(mine, local.box) == simplified(theirs, local.box))
