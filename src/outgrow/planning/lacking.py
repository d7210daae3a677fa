"""How much do workers lack of a tensor, for each way to run a call on it, and each state that it may have?

    an operand    the region that a worker's piece of the call needs, without what it has of it
    a result      the part that it is to have, without what its piece makes of it; from all others, where it is a sum

Workers of a division after the first belong to a group, which has a part of the tensor (`own`), and whose call is a
piece of the whole one. Both begin at the same place with the first group, after which all are judged. What its workers
lack includes what the group lacks, once for each that needs it.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from math import inf, prod
from typing import NamedTuple

import numpy as np

from outgrow.operators.regions import Range, Region, volume, whole, within
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
from outgrow.planning.room import ADDED, ADDENDS

WHOLE = -1
"""The state of a tensor of which every worker has all."""


class Use(NamedTuple):
    """Into how many a call is divided; whether it must be whole, and whether it may run on addends."""

    ways: int
    is_whole: bool
    adds: bool


@cache
def strategies_of(call: Call, use: Use) -> tuple[Strategy | None, ...]:
    """Return the ways to run a call: whole, cut, and on addends."""
    cut = () if use.is_whole else strategies(call, use.ways)
    return (None, *cut, *((ADDED,) if use.adds else ()))


@cache
def lacking(
    call: Call,
    numbers: tuple[int | None, ...],
    addends: tuple[int, ...],
    places: tuple[tuple[Shape, int, tuple[int, ...]], ...],
    use: Use,
) -> tuple[Table, ...]:
    """Return for each of some tensors a table: the bytes that are lacking for each way to run a call, and each state.

    `numbers` say which tensor each operand and result of the call is, and `addends` of how many they are sums already;
    `places` have the shape of what a group has of each tensor, the bytes of an element, and its states. An operand that
    is needed twice in the same way is fetched once.
    """
    count = len(call.operands)
    found: list[list[Table]] = [[] for _ in places]
    for at, (number, present) in enumerate(zip(numbers, addends, strict=True)):
        if number is None:
            continue
        own, item_bytes, states = places[number]
        needs = _of_operand(call, at, own, states, present, use) if at < count else None
        if needs is not None and any(np.array_equal(needs * item_bytes, other) for other in found[number]):
            continue
        table = _of_result(call, at - count, own, states, present, use) if needs is None else needs
        found[number].append(table * item_bytes)
    return tuple(sum(tables[1:], tables[0]) for tables in found)


def _of_operand(call: Call, position: int, own: Shape, states: tuple[int, ...], addends: int, use: Use) -> Table:
    """Return the elements of an operand that are lacking: a row for each way to run the call, a column a state."""
    ways = strategies_of(call, use)
    if position not in read(call):
        return np.zeros((len(ways), len(states)))
    (shape,) = (operand.shape for operand in call.operands if operand.position == position)
    rows: list[list[float]] = []
    for strategy in ways:
        if strategy is ADDED:
            rows.append([0.0 if state == ADDENDS else inf for state in states])
            continue
        parts = None if strategy is None else pieces(call, strategy, use.ways)
        needed = None if parts is None else tuple(piece.regions[position] for piece in parts)
        rows.append(fetched(shape, own, states, needed, addends, use.ways))
    return np.array(rows, dtype=float)


def _of_result(call: Call, number: int, own: Shape, states: tuple[int, ...], addends: int, use: Use) -> Table:
    """Return the elements of a result that are lacking: a row for each way to run the call, a column a state."""
    shape = call.shapes[number]
    assert shape is not None, "a result that has a name is there"
    rows: list[list[float]] = []
    for strategy in strategies_of(call, use):
        made, bounds = Same() if strategy is None else Partial(Reducer.SUM), ()
        if strategy is not None and strategy is not ADDED:
            made = strategy.outcomes[number]
            bounds = tuple(piece.bounds for piece in pieces(call, strategy, use.ways))
        rows.append(handed_on(shape, own, made, bounds, states, addends, use.ways))
    return np.array(rows, dtype=float)


def read(call: Call) -> frozenset[int]:
    """Return the operands whose content a call reads: all, where nothing is known of it."""
    found = description(call)
    if found is None:
        return frozenset(operand.position for operand in call.operands)
    return frozenset(element.operand for element in found.elements)


def fetched(
    shape: Shape, own: Shape, states: Sequence[int], needed: Sequence[Region] | None, addends: int, ways: int
) -> list[float]:
    """Return how many elements workers lack that need a region each of an operand, for each state; None: all of it.

    It is the sum of so many `addends` already, of which each worker has one.
    """
    found = [0.0] * len(states)
    for worker in range(ways):
        region = whole(shape) if needed is None else needed[worker]
        inside = within(region, shape)
        size, held = addends * volume(inside), _held(own, states, inside, worker, ways)
        for at, (state, (_, both)) in enumerate(zip(states, held, strict=True)):
            found[at] += size * (ways if state == ADDENDS else 1) - both
    return found


def handed_on(
    shape: Shape, own: Shape, outcome: Outcome, bounds: Sequence[Range], states: Sequence[int], addends: int, ways: int
) -> list[float]:
    """Return how many elements workers lack of a result that they computed somehow, for each state.

    Each addend lacks so many other `addends` already. Infinite, if what they computed are no addends and the state is
    to be one of addends.
    """
    sums = ways if isinstance(outcome, Partial) else 1
    found = [inf if state == ADDENDS and outcome != Partial(Reducer.SUM) else 0.0 for state in states]
    for worker in range(ways):
        made = whole(shape)
        if isinstance(outcome, Split):
            made = (*made[: outcome.dim], bounds[worker], *made[outcome.dim + 1 :])
        for at, (state, (size, both)) in enumerate(zip(states, _held(own, states, made, worker, ways), strict=True)):
            found[at] += addends * (1 if state == ADDENDS else sums) * size - both
    return found


def _held(own: Shape, states: Sequence[int], box: Region, worker: int, ways: int) -> Iterator[tuple[int, int]]:
    """Yield how many elements a worker has of what a group has of a tensor, in each state, and how many in a box."""
    spans = [max(0, min(high, size) - max(low, 0)) for (low, high), size in zip(box, own, strict=True)]
    size, both = prod(own), prod(spans)
    for state in states:
        if state in (WHOLE, ADDENDS):
            yield size, both
            continue
        begin, end = chunks(own[state], ways)[worker]
        low, high = box[state]
        across = max(0, min(high, end) - max(low, begin))
        yield size // own[state] * (end - begin), both // spans[state] * across if across else 0
