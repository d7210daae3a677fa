"""How is a step divided among k workers, each of which holds 1/k of every tensor, with the least communication?

    state of a tensor      the dimension along which it is cut, a part for each worker; or whole, where it is small
    strategy of a call     the variable along which it is cut (`operators.strategies`); or whole: all compute all of it
    cost                   bytes that workers receive: what a strategy needs of an operand and its state has elsewhere,
                           and what a state needs of a result and the strategy gives elsewhere (`planning.lacking`)

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
from math import prod

from outgrow.ir.machine import Machine
from outgrow.operators.catalogue import entry_of
from outgrow.operators.dataflow import GATHERED, Dataflow, Node, Tensor
from outgrow.operators.strategies import Partial, Split, Strategy, chunks, pieces, strategies
from outgrow.operators.tdl import Call
from outgrow.planning.elimination import MOST_ENTRIES, Choices, Table
from outgrow.planning.footprint import peak_bytes
from outgrow.planning.lacking import WHOLE, Use, lacking, strategies_of
from outgrow.planning.likeness import kinds
from outgrow.planning.room import ADDED, ADDENDS, Room, room_of

SMALL_BYTES = 64 << 10
"""A tensor of at most this size may be whole."""
MOST_CALLS = 1 << 12
"""Up to so many calls are chosen for one by one."""
ROUNDS, MOST_ENTRIES_ALIKE = (1, 2), 1 << 18
"""How far calls that are chosen for at once are alike, each of these tried, and how large tables may be then."""
FINENESS = 16
"""What fits of the things that may be held is found but for one of so many parts."""


@dataclass(frozen=True, slots=True)
class Level:
    """One division: into how many, the state of each tensor, the strategy of each node (None: whole), and the bytes.

    `received` are the bytes that one worker receives for each node, in this division and those before it;
    `communicated_bytes` are those of all workers for all nodes that this one adds.
    """

    ways: int
    states: Mapping[str, int]
    strategies: Mapping[str, Strategy | None]
    received: Mapping[str, float]
    communicated_bytes: float
    is_exact: bool

    def adds(self, node: str) -> bool:
        """Whether workers run a node on the addends that they have."""
        return self.strategies[node] is ADDED

    def sums(self, node: str, number: int) -> bool:
        """Whether a result of a node is to be reduced from what workers make."""
        found = self.strategies[node]
        return found is ADDED or (found is not None and isinstance(found.outcomes[number], Partial))


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


def partition(
    step: Dataflow,
    workers: int,
    fixed: Mapping[str, Sequence[int]] | None = None,
    memory_bytes: float | None = None,
    machine: Machine | None = None,
) -> Partition:
    """Return the cheapest division of a step among workers; raises `ValueError` for less than one.

    The states of tensors that are cut already are `fixed`, division by division. Where each worker has so much memory,
    as much as fits of what there may be (`planning.room`) is held, to receive less; None: as little as can be. On a
    machine to begin an exchange counts, too, as the bytes that could be received meanwhile.
    """
    if workers < 1:
        raise ValueError(f"{workers} workers: give one at least")
    room = room_of(step)

    def divided(room: Room) -> Partition:
        return _divided(step, workers, fixed or {}, room, machine)

    if memory_bytes is None:
        return divided(room.allowing(0))
    best = divided(room)
    if best.peak_bytes_per_worker <= memory_bytes or not room.names:
        return best
    best, fitting, beyond = divided(room.allowing(0)), 0, len(room.names)
    while beyond - fitting > 1 + len(room.names) // FINENESS:
        middle = (fitting + beyond) // 2
        found = divided(room.allowing(middle))
        if found.peak_bytes_per_worker <= memory_bytes:
            best, fitting = found, middle
        else:
            beyond = middle
    return best


def _divided(
    step: Dataflow, workers: int, fixed: Mapping[str, Sequence[int]], room: Room, machine: Machine | None
) -> Partition:
    """Return the cheapest division in which workers may hold so much."""
    levels: list[Level] = []
    part = _without_gathers(step, room)
    for depth, ways in enumerate(factors(workers)):
        given = {name: states[depth] for name, states in fixed.items() if name in part.tensors}
        count = workers // prod(item.ways for item in levels)
        waiting = 0.0 if machine is None else count * machine.waiting_bytes(count)
        level = _level(part, ways, given, room, levels, waiting)
        levels.append(level)
        part = _of_one_worker(part, level)
    undescribed = dict.fromkeys(node.call.operator for node in step.nodes if entry_of(node.call.operator) is None)
    lasting = sum(tensor.size_bytes for tensor in part.tensors.values() if tensor.lasting)
    received: Mapping[str, float] = levels[-1].received if levels else {}
    peak = peak_bytes(part, received)
    found = tuple(_with_gathers(level, step, room) for level in levels)
    return Partition(found, tuple(undescribed), lasting, peak, peak_bytes(step, {}))


def _without_gathers(step: Dataflow, room: Room) -> Dataflow:
    """Return a step in which parameters that may not be held are used as they are."""
    same = dict(_not_held(step, room))
    nodes = (
        replace(node, operands=tuple(same.get(name, name) for name in node.operands))
        for node in step.nodes
        if not same.keys() & set(node.results)
    )
    return replace(step, tensors={k: v for k, v in step.tensors.items() if k not in same}, nodes=tuple(nodes))


def _with_gathers(level: Level, step: Dataflow, room: Room) -> Level:
    """Return a division that says of parameters that may not be held, too, that they are as they are cut."""
    states, ways_of = dict(level.states), dict(level.strategies)
    calls = {name: node for node in step.nodes for name in node.results}
    for name, parameter in _not_held(step, room):
        states[name], node = states[parameter], calls[name]
        cut = (item for item in strategies(node.call, level.ways) if item.outcomes == (Split(states[name]),))
        ways_of[node.name] = next(cut, None)
    return replace(level, states=states, strategies=ways_of)


def _not_held(step: Dataflow, room: Room) -> Iterator[tuple[str, str]]:
    """Yield the results of gathers that are not allowed, and their parameters."""
    for node in step.nodes:
        (name, *_) = node.results
        if node.call.operator == GATHERED and name is not None and name not in room.held:
            yield name, node.operands[0]


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


def _level(
    step: Dataflow,
    ways: int,
    fixed: Mapping[str, int],
    room: Room,
    before: Sequence[Level],
    waiting_bytes: float,
) -> Level:
    """Return the cheapest way to divide each of the groups of workers to which divisions `before` led.

    An exchange costs so many bytes besides those that are sent.
    """
    states = {name: _states(tensor, ways, room) for name, tensor in step.tensors.items()}
    states |= {name: (state,) for name, state in fixed.items()}
    uses = {node.name: Use(ways, is_whole=node.whole, adds=node.name in room.adding) for node in step.nodes}
    tables = {node.name: _tables(node, step.tensors, states, before, uses[node.name]) for node in step.nodes}
    ways_of = {node.name: strategies_of(node.call, uses[node.name]) for node in step.nodes}
    sizes = {name: len(found) for name, found in ways_of.items()}
    costs = _with_waiting(tables, waiting_bytes) if waiting_bytes else tables
    chosen = _cheapest(step, states, costs, sizes)
    lacked = {
        name: sum(float(table[chosen.strategies[name], chosen.states[tensor]]) for tensor, table in own_tables.items())
        for name, own_tables in tables.items()
    }
    return Level(
        ways,
        {name: domain[chosen.states[name]] for name, domain in states.items()},
        {name: found[chosen.strategies[name]] for name, found in ways_of.items()},
        {name: size_bytes / ways for name, size_bytes in lacked.items()},
        prod(level.ways for level in before) * sum(lacked.values()) - sum(item.communicated_bytes for item in before),
        chosen.is_exact,
    )


def _with_waiting(tables: Mapping[str, Mapping[str, Table]], waiting_bytes: float) -> dict[str, dict[str, Table]]:
    """Return tables in which whatever is sent costs so much more; equal ones stay one array."""
    known: dict[int, Table] = {}
    for table in (table for own_tables in tables.values() for table in own_tables.values()):
        if id(table) not in known:
            known[id(table)] = table + waiting_bytes * (table > 0)
    return {node: {name: known[id(table)] for name, table in found.items()} for node, found in tables.items()}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The numbers of the strategies of nodes and of the states of tensors, and what they cost."""

    strategies: Mapping[str, int]
    states: Mapping[str, int]
    cost: float
    is_exact: bool


def _cheapest(
    step: Dataflow,
    states: Mapping[str, tuple[int, ...]],
    tables: Mapping[str, Mapping[str, Table]],
    sizes: Mapping[str, int],
) -> _Chosen:
    """Choose for each call by itself, if there are not too many; where that is not exact, for those alike at once, too.

    Of choices that are not exact the cheapest is returned.
    """
    best: _Chosen | None = None
    if len(step.nodes) <= MOST_CALLS:
        nodes = {node.name: at for at, node in enumerate(step.nodes)}
        each = (nodes, {name: at for at, name in enumerate(states)})
        best = _chosen(states, tables, each, sizes, MOST_ENTRIES)
        if best.is_exact:
            return best
    for rounds in ROUNDS:
        found = _chosen(states, tables, kinds(step, states, sizes, rounds), sizes, MOST_ENTRIES_ALIKE)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None, "something was tried"
    return replace(best, is_exact=False)


def _chosen(
    states: Mapping[str, tuple[int, ...]],
    tables: Mapping[str, Mapping[str, Table]],
    alike: tuple[Mapping[str, int], Mapping[str, int]],
    sizes: Mapping[str, int],
    most_entries: int,
) -> _Chosen:
    """Choose one strategy for the nodes of each kind, and one state for the tensors of each."""
    nodes, tensors = alike
    choices = Choices()
    state = {tensors[name]: len(domain) for name, domain in states.items()}
    state = {kind: choices.add_variable(size) for kind, size in state.items()}
    strategy = {nodes[name]: size for name, size in sizes.items()}
    strategy = {kind: choices.add_variable(size) for kind, size in strategy.items()}
    costs: dict[tuple[int, int], Table] = {}
    for name, own_tables in tables.items():
        for tensor, table in own_tables.items():
            pair = (strategy[nodes[name]], state[tensors[tensor]])
            costs[pair] = costs[pair] + table if pair in costs else table
    for pair, table in costs.items():
        choices.add_cost(pair, table)
    found = choices.cheapest(most_entries)
    return _Chosen(
        {name: found.choices[strategy[nodes[name]]] for name in sizes},
        {name: found.choices[state[tensors[name]]] for name in states},
        found.cost,
        found.is_exact,
    )


def _states(tensor: Tensor, ways: int, room: Room) -> tuple[int, ...]:
    """Return the states that a tensor may have: cut along any dimension that is large enough.

    It may be whole if it is small, or of a parameter that is held; and those of a sum may be addends.
    """
    if tensor.whole:
        return (WHOLE,)
    dims = tuple(dim for dim, size in enumerate(tensor.shape) if all(b < e for b, e in chunks(size, ways)))
    may_be_whole = tensor.size_bytes <= SMALL_BYTES or tensor.name in room.held or not dims
    return (*dims, *((WHOLE,) if may_be_whole else ()), *((ADDENDS,) if tensor.name in room.sums else ()))


def _tables(
    node: Node, tensors: Mapping[str, Tensor], states: Mapping[str, tuple[int, ...]], before: Sequence[Level], use: Use
) -> dict[str, Table]:
    """Return, by tensor, the bytes that workers lack for each way to run a node, and each of the tensor's states."""
    names = tuple(dict.fromkeys(node.tensors))
    addends: list[int] = []
    for name in node.operands:
        apart = (level.ways for level in before if level.states[name] == ADDENDS and not level.adds(node.name))
        addends.append(prod(apart))
    for number, name in enumerate(node.results):
        apart = (
            level.ways for level in before if level.sums(node.name, number) and level.states[name or ""] != ADDENDS
        )
        addends.append(1 if name is None else prod(apart))
    numbers = tuple(None if name is None else names.index(name) for name in (*node.operands, *node.results))
    places = tuple((tensors[name].shape, tensors[name].item_bytes, states[name]) for name in names)
    return dict(zip(names, lacking(node.call, numbers, tuple(addends), places, use), strict=True))


# The next division --------------------------------------------------------------------------------------------------


def _of_one_worker(step: Dataflow, level: Level) -> Dataflow:
    """Return what the first worker of a division holds and does, whose parts are no smaller than any other's."""
    tensors = {name: _part(tensor, level.states[name], level.ways) for name, tensor in step.tensors.items()}
    nodes = (replace(node, call=_local(node.call, level.strategies[node.name], level.ways)) for node in step.nodes)
    return Dataflow(tensors, tuple(nodes))


def _part(tensor: Tensor, state: int, ways: int) -> Tensor:
    if state in (WHOLE, ADDENDS):
        return tensor
    size = -(-tensor.shape[state] // ways)
    return replace(tensor, shape=(*tensor.shape[:state], size, *tensor.shape[state + 1 :]))


def _local(call: Call, strategy: Strategy | None, ways: int) -> Call:
    """Return the call of the first worker, whose part is no smaller than any other's."""
    return call if strategy is None or strategy is ADDED else pieces(call, strategy, ways)[0].call
