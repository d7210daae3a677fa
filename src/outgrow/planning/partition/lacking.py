"""How much do workers lack of a tensor, for each way to run a call on it, and each state that it may have?

    an operand    the region that a worker's piece of the call needs, without what it has of it
    a result      the part that it is to have, without what its piece makes of it; of a sum, the addends of all others

From the second division on, workers belong to groups: a group has a part of the tensor (`own`), and its call is a piece
of the whole one. All groups are judged by the first, in which both begin at the same place. What its workers lack
includes what the group lacks, counted for each worker that needs it.
"""

from collections.abc import Iterator
from functools import cache
from math import inf, prod
from typing import NamedTuple, TypeAlias

import numpy as np

from outgrow.operators.regions import Range, Region, volume, whole, within
from outgrow.operators.strategies import (
    Outcome,
    Partial,
    Piece,
    Same,
    Split,
    Strategy,
    chunks,
    description,
    pieces,
    strategies,
)
from outgrow.operators.tdl import OperatorCall, Reducer, Shape
from outgrow.planning.partition.elimination import Table
from outgrow.planning.partition.room import ADDED, ADDENDS

WHOLE = -1
"""The state of a tensor of which every worker has all."""


class Use(NamedTuple):
    """Into how many pieces a call is divided; whether it must be whole, and whether it may run on addends."""

    ways: int
    is_whole: bool
    adds: bool


@cache
def strategies_of(call: OperatorCall, use: Use) -> tuple[Strategy | None, ...]:
    """Return the ways to run a call: whole, cut, and on addends."""
    cut = () if use.is_whole else strategies(call, use.ways)
    return (None, *cut, *((ADDED,) if use.adds else ()))


@cache
def lacking(
    call: OperatorCall,
    numbers: tuple[int | None, ...],
    addends: tuple[int, ...],
    places: tuple[tuple[Shape, int, tuple[int, ...]], ...],
    use: Use,
) -> tuple[Table, ...]:
    """Return for each of some tensors a table: the bytes that are lacking for each way to run a call, and each state.

    `numbers` say which tensor each operand and result is, and `addends` of how many addends it is already the sum;
    `places` have, for each tensor, the shape of a group's part, the bytes of an element, and the states. An operand
    that is needed twice in the same way is fetched once.
    """
    operands, contents = call.operands, read(call)
    ways = [(way, pieces_of(call, way, use.ways)) for way in strategies_of(call, use)]
    found: list[list[Table]] = [[] for _ in places]
    for at, (number, present) in enumerate(zip(numbers, addends, strict=True)):
        if number is None:
            continue
        own, item_bytes, states = places[number]
        if at >= len(operands):
            shape = call.shapes[at - len(operands)]
            assert shape is not None, "a result that has a name is there"
            rows = [_of_result(way, shape, at - len(operands), own, states, present, use.ways) for way in ways]
        elif at in contents:
            shape = next(operand.shape for operand in operands if operand.position == at)
            rows = [_of_operand(way, shape, at, own, states, present, use.ways) for way in ways]
        else:
            rows = [(0.0,) * len(states)] * len(ways)
        table = np.array(rows, dtype=float) * item_bytes
        if at >= len(operands) or not any(np.array_equal(table, other) for other in found[number]):
            found[number].append(table)
    return tuple(sum(tables[1:], tables[0]) for tables in found)


_Way: TypeAlias = tuple[Strategy | None, tuple[Piece, ...]]
"""A way to run a call, and what each worker does if it is cut."""


def pieces_of(call: OperatorCall, way: Strategy | None, ways: int) -> tuple[Piece, ...]:
    """Return what each worker does in a way to run a call; nothing where all run the call itself."""
    return () if way is None or way is ADDED else pieces(call, way, ways)


def _of_operand(
    way: _Way, shape: Shape, position: int, own: Shape, states: tuple[int, ...], addends: int, ways: int
) -> tuple[float, ...]:
    """Return the elements of an operand that are lacking for a way to run the call, for each state."""
    strategy, parts = way
    if strategy is ADDED:
        return tuple(0.0 if state == ADDENDS else inf for state in states)
    needed = tuple([piece.regions[position] for piece in parts]) if parts else None
    return fetched(shape, own, states, needed, addends, ways)


def _of_result(
    way: _Way, shape: Shape, number: int, own: Shape, states: tuple[int, ...], addends: int, ways: int
) -> tuple[float, ...]:
    """Return the elements of a result that are lacking for a way to run the call, for each state."""
    strategy, parts = way
    if strategy is None or strategy is ADDED:
        return handed_on(shape, own, Partial(Reducer.SUM) if strategy else Same(), (), states, addends, ways)
    return handed_on(
        shape, own, strategy.outcomes[number], tuple([piece.bounds for piece in parts]), states, addends, ways
    )


@cache
def read(call: OperatorCall) -> frozenset[int]:
    """Return the operands whose content a call reads: all, where nothing is known of it."""
    found = description(call)
    if found is None:
        return frozenset(operand.position for operand in call.operands)
    return frozenset(element.operand for element in found.elements)


@cache
def fetched(
    shape: Shape, own: Shape, states: tuple[int, ...], needed: tuple[Region, ...] | None, addends: int, ways: int
) -> tuple[float, ...]:
    """Return, for each state, how many elements of an operand all workers together have to receive.

    Worker w needs the region `needed[w]` (None: all of it). The operand is already a sum of `addends` addends, of which
    each worker has one.
    """
    found = [0.0] * len(states)
    for worker in range(ways):
        region = whole(shape) if needed is None else needed[worker]
        inside = within(region, shape)
        size, held = addends * volume(inside), _held(own, states, inside, worker, ways)
        for at, (state, (_, both)) in enumerate(zip(states, held, strict=True)):
            found[at] += size * (ways if state == ADDENDS else 1) - both
    return tuple(found)


@cache
def handed_on(
    shape: Shape,
    own: Shape,
    outcome: Outcome,
    bounds: tuple[Range, ...],
    states: tuple[int, ...],
    addends: int,
    ways: int,
) -> tuple[float, ...]:
    """Return, for each state, how many elements workers lack of a result that their pieces gave with this outcome.

    It is already a sum of `addends` addends. A state of addends costs infinitely much if the pieces gave none.
    """
    sums = ways if isinstance(outcome, Partial) else 1
    found = [inf if state == ADDENDS and outcome != Partial(Reducer.SUM) else 0.0 for state in states]
    for worker in range(ways):
        made = whole(shape)
        if isinstance(outcome, Split):
            made = (*made[: outcome.dim], bounds[worker], *made[outcome.dim + 1 :])
        for at, (state, (size, both)) in enumerate(zip(states, _held(own, states, made, worker, ways), strict=True)):
            found[at] += addends * (1 if state == ADDENDS else sums) * size - both
    return tuple(found)


def _held(own: Shape, states: tuple[int, ...], box: Region, worker: int, ways: int) -> Iterator[tuple[int, int]]:
    """Yield, for each state, how many elements a worker has of its group's part, and how many of these are in a box."""
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
