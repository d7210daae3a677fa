"""How much do workers lack of a tensor, for each way to run a call on it, and each state that it may have?

    an operand    the region that a worker's piece of the call needs, without what it has of it
    a result      the part that it is to have, without what its piece makes of it; from all others, where it is a sum

Workers of a division after the first belong to a group, which has a part of the tensor (`own`), and whose call is a
piece of the whole one. Both begin at the same place with the first group, after which all are judged. What its workers
lack includes what the group lacks, once for each that needs it.
"""

from functools import cache
from math import inf, prod

import numpy as np

from outgrow.operators.regions import Range, Region
from outgrow.operators.strategies import (
    Outcome,
    Partial,
    Same,
    Split,
    Strategy,
    chunks,
    description,
    pieces,
    strategies,
)
from outgrow.operators.tdl import Call, Reducer, Shape
from outgrow.planning.elimination import Table
from outgrow.planning.room import ADDENDS

WHOLE = -1
"""The state of a tensor of which every worker has all."""


@cache
def of_operand(call: Call, position: int, own: Shape, states: tuple[int, ...], addends: int, ways: int) -> Table:
    """Return the elements of an operand that are lacking: a row for each strategy, whole first, a column a state."""
    if position not in read(call):
        return np.zeros((1 + len(strategies(call, ways)), len(states)))
    (shape,) = (operand.shape for operand in call.operands if operand.position == position)
    parts = (pieces(call, strategy, ways) for strategy in strategies(call, ways))
    needed = (None, *(tuple(piece.regions[position] for piece in found) for found in parts))
    rows = [[fetched(shape, own, state, regions, addends, ways) for state in states] for regions in needed]
    return np.array(rows, dtype=float)


@cache
def of_result(call: Call, number: int, own: Shape, states: tuple[int, ...], addends: int, ways: int) -> Table:
    """Return the elements of a result that are lacking: a row for each strategy, whole first, a column a state."""
    shape = call.shapes[number]
    assert shape is not None, "a result that has a name is there"
    cuts = [(Same(), ()), *((item.outcomes[number], _bounds(call, item, ways)) for item in strategies(call, ways))]
    rows = [[handed_on(shape, own, made, bounds, state, addends, ways) for state in states] for made, bounds in cuts]
    return np.array(rows, dtype=float)


def _bounds(call: Call, strategy: Strategy, ways: int) -> tuple[Range, ...]:
    return tuple(piece.bounds for piece in pieces(call, strategy, ways))


def read(call: Call) -> frozenset[int]:
    """Return the operands whose content a call reads: all, where nothing is known of it."""
    found = description(call)
    if found is None:
        return frozenset(operand.position for operand in call.operands)
    return frozenset(element.operand for element in found.elements)


def fetched(shape: Shape, own: Shape, state: int, needed: tuple[Region, ...] | None, addends: int, ways: int) -> int:
    """Return how many elements workers lack that need a region each of an operand in some state; None: all of it.

    It is the sum of so many `addends` already, of which each worker has one.
    """
    total = 0
    for worker in range(ways):
        region = whole(shape) if needed is None else needed[worker]
        inside = tuple((max(low, 0), min(high, size)) for (low, high), size in zip(region, shape, strict=True))
        times = addends * (ways if state == ADDENDS else 1)
        total += times * volume(inside) - _both(inside, _held(own, state, worker, ways))
    return total


def handed_on(
    shape: Shape, own: Shape, outcome: Outcome, bounds: tuple[Range, ...], state: int, addends: int, ways: int
) -> float:
    """Return how many elements workers lack of a result that they computed somehow, to have it in some state.

    Each addend lacks so many other `addends` already. Infinite, if what they computed are no addends and the state is
    to be one of addends.
    """
    is_sum = outcome == Partial(Reducer.SUM)
    if state == ADDENDS and not is_sum:
        return inf
    times = addends * (ways if isinstance(outcome, Partial) and state != ADDENDS else 1)
    total = 0
    for worker in range(ways):
        made = whole(shape)
        if isinstance(outcome, Split):
            made = (*made[: outcome.dim], bounds[worker], *made[outcome.dim + 1 :])
        held = _held(own, state, worker, ways)
        total += times * volume(held) - _both(held, made)
    return total


def _held(own: Shape, state: int, worker: int, ways: int) -> Region:
    if state in (WHOLE, ADDENDS):
        return whole(own)
    return (*whole(own[:state]), chunks(own[state], ways)[worker], *whole(own[state + 1 :]))


def whole(shape: Shape) -> Region:
    """Return the region that is all of a tensor."""
    return tuple((0, size) for size in shape)


def volume(box: Region) -> int:
    """Return how many elements a box has."""
    return prod(end - begin for begin, end in box)


def _both(one: Region, other: Region) -> int:
    """Return how many elements lie in two boxes."""
    return prod(max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in zip(one, other, strict=True))
