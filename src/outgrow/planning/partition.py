"""How is a step divided among k workers, each of which holds 1/k of every tensor, with the least communication?

    state of a tensor      the dimension along which it is cut, a part for each worker; or whole, where it is small
    strategy of a call     the variable along which it is cut (`operators.strategies`); or whole: all compute all of it
    cost                   bytes that workers receive: what a strategy needs of an operand and its state has elsewhere,
                           and what a state needs of a result and the strategy gives elsewhere

    region that is needed            what of it is not in the worker's own part
    parts of a result                what of the worker's own part is not in what it computed
    partial results                  each worker's own part, from all others (a reduce-scatter)

Costs of a call are sums over its tensors, so each depends on one strategy and one state: the cheapest choice of all is
found exactly (`planning.elimination`). Where that is too entangled, as over many time steps, it is the cheapest in
which calls that are alike are cut alike (`planning.likeness`). With k = k1 * k2 * ..., largest factor first, workers
are divided k1 ways, then each group of them k2 ways: on what one worker of the division before does, once for all
groups, since they are alike.

An operator that is not described is whole, and named (`Partition.whole`). Source: Tofu (M. Wang, C. Huang, J. Li,
EuroSys 2019, section 5). Instead of its dynamic programme over a coarsened chain the elimination takes the graph as it
is, and a region counts what of it is remote, halos included.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np

from outgrow.operators.catalogue import entry_of
from outgrow.operators.dataflow import Dataflow, Node, Tensor
from outgrow.operators.regions import Range, Region
from outgrow.operators.strategies import (
    Outcome,
    Partial,
    Split,
    Strategy,
    chunks,
    description,
    pieces,
    strategies,
)
from outgrow.operators.tdl import Call, Shape
from outgrow.planning.elimination import MOST_ENTRIES, Choices, Table
from outgrow.planning.likeness import kinds

WHOLE = -1
"""The state of a tensor of which every worker has all."""
SMALL_BYTES = 64 << 10
"""A tensor of at most this size may be whole."""
MOST_CALLS = 1 << 12
"""Up to so many calls are chosen for one by one."""
ROUNDS, MOST_ENTRIES_ALIKE = (1, 2), 1 << 18
"""How far calls that are chosen for at once are alike, each of these tried, and how large tables may be then."""


@dataclass(frozen=True, slots=True)
class Level:
    """One division: into how many, the state of each tensor, the strategy of each node (None: whole), and the bytes.

    `received` are the bytes that one worker receives for each node, `communicated_bytes` those of all for all nodes.
    """

    ways: int
    states: Mapping[str, int]
    strategies: Mapping[str, Strategy | None]
    received: Mapping[str, float]
    communicated_bytes: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """The divisions of a step, one within the other, and the operators of which nothing is known, so they are whole."""

    levels: tuple[Level, ...]
    whole: tuple[str, ...]
    lasting_bytes_per_worker: int
    peak_bytes_per_worker: int
    in_core_peak_bytes: int

    @property
    def workers(self) -> int:
        """Among how many the step is divided."""
        return prod(level.ways for level in self.levels)

    @property
    def communicated_bytes(self) -> float:
        """What all workers receive in a step."""
        return sum(level.communicated_bytes for level in self.levels)


def partition(step: Dataflow, workers: int, fixed: Mapping[str, Sequence[int]] | None = None) -> Partition:
    """Return the cheapest division of a step among workers; raises `ValueError` for less than one.

    The states of tensors that are cut already are `fixed`, division by division.
    """
    if workers < 1:
        raise ValueError(f"{workers} workers: give one at least")
    levels: list[Level] = []
    groups, part = 1, step
    for depth, ways in enumerate(factors(workers)):
        given = {name: states[depth] for name, states in (fixed or {}).items() if name in step.tensors}
        level = _level(part, ways, groups, given)
        levels.append(level)
        part = _of_one_worker(part, level)
        groups *= ways
    undescribed = dict.fromkeys(node.call.operator for node in step.nodes if entry_of(node.call.operator) is None)
    lasting = sum(tensor.size_bytes for tensor in part.tensors.values() if tensor.lasting)
    return Partition(tuple(levels), tuple(undescribed), lasting, peak_bytes(part, levels), peak_bytes(step, ()))


def data_parallel_bytes(step: Dataflow, workers: int) -> int | None:
    """Return what workers receive that have all parameters and a part of the batch each, and add gradients in a ring.

    None where the first dimension of the batch is too short for so many.
    """
    made = {name for node in step.nodes for name in node.results}
    batch = (item for name, item in step.tensors.items() if item.whole and not item.lasting and name not in made)
    if any(item.shape and item.shape[0] < workers for item in batch):
        return None
    written = {name for node in step.nodes for name in node.results if name in node.operands}
    trained = (tensor.size_bytes for name, tensor in step.tensors.items() if tensor.trained and name in written)
    return 2 * (workers - 1) * sum(trained)


def peak_bytes(step: Dataflow, levels: Sequence[Level]) -> int:
    """Return the most bytes that are live at once where a step is run, what is received for a node included.

    A view takes memory of its own where it had to be received, since it is cut otherwise than what it views.
    """
    received = {node.name: sum(level.received[node.name] for level in levels) for node in step.nodes}
    made = {name: node.name for node in step.nodes for name in node.results if name is not None}
    owners = {
        name: name if tensor.viewed not in step.tensors or received.get(made.get(name, ""), 0) else tensor.viewed
        for name, tensor in step.tensors.items()
    }
    dying: dict[int, list[str]] = {}
    last = {owners[name]: at for at, node in enumerate(step.nodes) for name in _tensors_of(node)}
    for name, at in last.items():
        dying.setdefault(at, []).append(name)
    live = {owners[name] for name, tensor in step.tensors.items() if tensor.lasting or name not in made}
    held = sum(step.tensors[name].size_bytes for name in live)
    peak = float(held)
    for at, node in enumerate(step.nodes):
        born = {owners[name] for name in node.results if name is not None} - live
        live |= born
        held += sum(step.tensors[name].size_bytes for name in born)
        peak = max(peak, held + received[node.name])
        dead = [name for name in dying.get(at, ()) if name in live and not step.tensors[name].lasting]
        live.difference_update(dead)
        held -= sum(step.tensors[name].size_bytes for name in dead)
    return int(peak)


def _tensors_of(node: Node) -> Iterator[str]:
    yield from node.operands
    yield from (name for name in node.results if name is not None)


def factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a number, largest first.

    >>> factors(12), factors(1)
    ((3, 2, 2), ())
    """
    found: list[int] = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return tuple(reversed(found))


# One division -------------------------------------------------------------------------------------------------------


def _level(step: Dataflow, ways: int, groups: int, fixed: Mapping[str, int]) -> Level:
    """Return the cheapest way to divide a step, by the only division of as many groups of workers as there are."""
    states = {name: _states(tensor, ways) for name, tensor in step.tensors.items()}
    states |= {name: (state,) for name, state in fixed.items()}
    tables = {node.name: _tables(node, step.tensors, states, ways) for node in step.nodes}
    chosen = _cheapest(step, states, tables, ways)
    received = {
        name: sum(float(table[chosen.strategies[name], chosen.states[tensor]]) for tensor, table in own_tables.items())
        for name, own_tables in tables.items()
    }
    return Level(
        ways,
        {name: domain[chosen.states[name]] for name, domain in states.items()},
        {node.name: (None, *_strategies(node, ways))[chosen.strategies[node.name]] for node in step.nodes},
        {name: received_bytes / ways for name, received_bytes in received.items()},
        groups * chosen.cost,
        chosen.is_exact,
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The numbers of the strategies of nodes and of the states of tensors, and what they cost."""

    strategies: Mapping[str, int]
    states: Mapping[str, int]
    cost: float
    is_exact: bool


def _cheapest(
    step: Dataflow, states: Mapping[str, tuple[int, ...]], tables: Mapping[str, Mapping[str, Table]], ways: int
) -> _Chosen:
    """Choose for each call by itself, if there are not too many; where that is not exact, for those alike at once, too.

    Of choices that are not exact the cheapest is returned.
    """
    best: _Chosen | None = None
    if len(step.nodes) <= MOST_CALLS:
        nodes = {node.name: at for at, node in enumerate(step.nodes)}
        best = _chosen(step, states, tables, (nodes, {name: at for at, name in enumerate(states)}), ways, MOST_ENTRIES)
        if best.is_exact:
            return best
    for rounds in ROUNDS:
        found = _chosen(step, states, tables, kinds(step, rounds), ways, MOST_ENTRIES_ALIKE)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None, "something was tried"
    return replace(best, is_exact=False)


def _chosen(
    step: Dataflow,
    states: Mapping[str, tuple[int, ...]],
    tables: Mapping[str, Mapping[str, Table]],
    alike: tuple[Mapping[str, int], Mapping[str, int]],
    ways: int,
    most_entries: int,
) -> _Chosen:
    """Choose one strategy for the nodes of each kind, and one state for the tensors of each."""
    nodes, tensors = alike
    choices = Choices()
    for kind, size in {tensors[name]: len(domain) for name, domain in states.items()}.items():
        choices.add_variable(_state(kind), size)
    for kind, size in {nodes[node.name]: 1 + len(_strategies(node, ways)) for node in step.nodes}.items():
        choices.add_variable(_strategy(kind), size)
    costs: dict[tuple[int, int], Table] = {}
    for name, own_tables in tables.items():
        for tensor, table in own_tables.items():
            pair = (nodes[name], tensors[tensor])
            costs[pair] = costs.get(pair, 0.0) + table
    for (node_kind, tensor_kind), table in costs.items():
        choices.add_cost((_strategy(node_kind), _state(tensor_kind)), table)
    found = choices.cheapest(most_entries)
    return _Chosen(
        {node.name: found.choices[_strategy(nodes[node.name])] for node in step.nodes},
        {name: found.choices[_state(tensors[name])] for name in states},
        found.cost,
        found.is_exact,
    )


def _state(kind: int) -> str:
    return f"state {kind}"


def _strategy(kind: int) -> str:
    return f"strategy {kind}"


def _strategies(node: Node, ways: int) -> tuple[Strategy, ...]:
    """Return the ways to cut a node."""
    return () if node.whole else strategies(node.call, ways)


def _states(tensor: Tensor, ways: int) -> tuple[int, ...]:
    """Return the states that a tensor may have: cut along any dimension that is large enough; whole if it is small."""
    if tensor.whole:
        return (WHOLE,)
    dims = tuple(dim for dim, size in enumerate(tensor.shape) if all(b < e for b, e in chunks(size, ways)))
    return (*dims, WHOLE) if tensor.size_bytes <= SMALL_BYTES or not dims else dims


def _tables(
    node: Node, tensors: Mapping[str, Tensor], states: Mapping[str, tuple[int, ...]], ways: int
) -> dict[str, Table]:
    """Return, by tensor, the bytes that each strategy of a node costs for each of the tensor's states."""
    found: dict[str, Table] = {}
    for operand, name in zip(node.call.operands, node.operands, strict=True):
        table = _of_operand(node.call, operand.position, states[name], ways)
        found[name] = found.get(name, 0.0) + table * tensors[name].item_bytes
    for number, name in enumerate(node.results):
        if name is not None:
            table = _of_result(node.call, number, states[name], ways)
            found[name] = found.get(name, 0.0) + table * tensors[name].item_bytes
    return {name: table[: 1 + len(_strategies(node, ways))] for name, table in found.items()}


@cache
def _of_operand(call: Call, position: int, states: tuple[int, ...], ways: int) -> Table:
    """Return the elements of an operand that are received: a row for each strategy, whole first, a column a state."""
    is_read = position in read(call)
    shape = next(operand.shape for operand in call.operands if operand.position == position)
    if not is_read:
        return np.zeros((1 + len(strategies(call, ways)), len(states)))
    parts = (pieces(call, strategy, ways) for strategy in strategies(call, ways))
    needed = (None, *(tuple(piece.regions[position] for piece in found) for found in parts))
    return np.array([[fetched(shape, state, regions, ways) for state in states] for regions in needed], dtype=float)


@cache
def _of_result(call: Call, number: int, states: tuple[int, ...], ways: int) -> Table:
    """Return the elements of a result that are received: a row for each strategy, whole first, a column a state."""
    shape = call.shapes[number]
    assert shape is not None, "a result that has a name is there"
    rows = [[0] * len(states)]
    for strategy in strategies(call, ways):
        bounds = tuple(piece.bounds for piece in pieces(call, strategy, ways))
        outcome = strategy.outcomes[number]
        rows.append([handed_on(shape, outcome, bounds, state, ways) for state in states])
    return np.array(rows, dtype=float)


def read(call: Call) -> frozenset[int]:
    """Return the operands whose content a call reads: all, where nothing is known of it."""
    found = description(call)
    if found is None:
        return frozenset(operand.position for operand in call.operands)
    return frozenset(element.operand for element in found.elements)


def fetched(shape: Shape, state: int, needed: tuple[Region, ...] | None, ways: int) -> int:
    """Return how many elements workers receive that need a region each of a tensor in some state; None: all of it."""
    if state == WHOLE:
        return 0
    if needed is None:
        return prod(shape) * (ways - 1)
    total = 0
    for (begin, end), region in zip(chunks(shape[state], ways), needed, strict=True):
        inside = [(max(low, 0), min(high, size)) for (low, high), size in zip(region, shape, strict=True)]
        low, high = inside[state]
        others = prod(b - a for axis, (a, b) in enumerate(inside) if axis != state)
        total += others * (high - low - max(0, min(high, end) - max(low, begin)))
    return total


def handed_on(shape: Shape, outcome: Outcome, bounds: tuple[Range, ...], state: int, ways: int) -> int:
    """Return how many elements workers receive of a result that they computed somehow, to have it in some state."""
    size = prod(shape)
    match outcome:
        case Partial():
            return size * (ways - 1) * (2 if state == WHOLE else 1)
        case Split(dim):
            if state == WHOLE:
                return size * (ways - 1)
            mine = chunks(shape[state], ways)
            return sum(
                size // shape[state] * (end - begin) - _both(shape, (dim, made), (state, (begin, end)))
                for made, (begin, end) in zip(bounds, mine, strict=True)
            )
        case _:
            return 0


def _both(shape: Shape, one: tuple[int, Range], other: tuple[int, Range]) -> int:
    """Return how many elements lie in a range of one dimension and in a range of another, or the same."""
    (dim, (begin, end)), (axis, (low, high)) = one, other
    if dim == axis:
        return prod(shape) // shape[dim] * max(0, min(end, high) - max(begin, low))
    return prod(shape) // shape[dim] // shape[axis] * (end - begin) * (high - low)


# The next division --------------------------------------------------------------------------------------------------


def _of_one_worker(step: Dataflow, level: Level) -> Dataflow:
    """Return what the first worker of a division holds and does, whose parts are no smaller than any other's."""
    tensors = {name: _part(tensor, level.states[name], level.ways) for name, tensor in step.tensors.items()}
    nodes = (replace(node, call=_local(node.call, level.strategies[node.name], level.ways)) for node in step.nodes)
    return Dataflow(tensors, tuple(nodes))


def _part(tensor: Tensor, state: int, ways: int) -> Tensor:
    if state == WHOLE:
        return tensor
    size = -(-tensor.shape[state] // ways)
    return replace(tensor, shape=(*tensor.shape[:state], size, *tensor.shape[state + 1 :]))


def _local(call: Call, strategy: Strategy | None, ways: int) -> Call:
    """Return the call of the first worker, whose part is no smaller than any other's."""
    return call if strategy is None else pieces(call, strategy, ways)[0].call
