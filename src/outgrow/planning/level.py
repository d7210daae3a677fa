"""How is a step divided once, each worker or group of them holding a part of every tensor, with the least communication?

Costs of a call are sums over its tensors, so each depends on one strategy and one state: the cheapest choice of all is
found exactly (`planning.elimination`). Where that is too entangled, as over many time steps, it is the cheapest in
which calls that are alike are cut alike (`planning.likeness`).

Equal calls of the step are one object, so what is known of nodes that are alike is found once, by identity.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from math import prod

from outgrow.operators.dataflow import Dataflow, Node, Tensor
from outgrow.operators.strategies import Partial, Strategy, chunks
from outgrow.operators.tdl import Shape
from outgrow.planning.elimination import MOST_ENTRIES, Bucket, Choices, Table
from outgrow.planning.lacking import WHOLE, Use, lacking, strategies_of
from outgrow.planning.likeness import kinds
from outgrow.planning.room import ADDED, ADDENDS, Room

SMALL_BYTES = 64 << 10
"""A tensor of at most this size may be whole."""
MOST_CALLS = 1 << 12
"""Up to so many calls are chosen for one by one."""
ROUNDS, MOST_ENTRIES_ALIKE = 2, 1 << 18
"""How far calls that are chosen for at once are alike, at most, and how large tables may be then."""
MOST_STATES = 1 << 8
"""For up to so many combinations of states of its tensors the best way to run a node is found beforehand."""


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
class _Options:
    """The ways to run nodes that are alike, and of each of their tensors a table: a row for each way, a column a state.

    The entries are the bytes that workers lack, in `costs` with what it costs besides to begin an exchange. A way is the
    `best` for the states of tensors that other nodes use, too, where the others are as suits it; what it costs for all
    these states is `least`, None where they are too many.
    """

    ways: tuple[Strategy | None, ...]
    lacking: tuple[Table, ...]
    costs: tuple[Table, ...]
    best: Bucket
    least: Table | None


@dataclass(frozen=True, slots=True)
class _Run:
    """A node: its tensors, each once, those among them that other nodes use, too, and what there is to choose from."""

    tensors: tuple[str, ...]
    shared: tuple[str, ...]
    options: _Options


def divided_once(
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
    runs = _runs(step, ways, states, room, before, waiting_bytes)
    chosen = _cheapest(step, states, runs)
    lacked: dict[str, float] = {}
    for name, run in runs.items():
        way, tables = chosen.ways[name], zip(run.tensors, run.options.lacking, strict=True)
        lacked[name] = sum([table.item(way, chosen.states[tensor]) for tensor, table in tables])
    groups = prod(level.ways for level in before)
    return Level(
        ways,
        {name: domain[chosen.states[name]] for name, domain in states.items()},
        {name: run.options.ways[chosen.ways[name]] for name, run in runs.items()},
        {name: size_bytes / ways for name, size_bytes in lacked.items()},
        groups * sum(lacked.values()) - sum(item.communicated_bytes for item in before),
        chosen.is_exact,
    )


# What there is to choose from ---------------------------------------------------------------------------------------


def _states(tensor: Tensor, ways: int, room: Room) -> tuple[int, ...]:
    """Return the states that a tensor may have: cut along any dimension that is large enough.

    It may be whole if it is small, or of a parameter that is held; and those of a sum may be addends.
    """
    if tensor.whole:
        return (WHOLE,)
    dims = _dims(tensor.shape, ways)
    may_be_whole = not dims or tensor.name in room.held or tensor.size_bytes <= SMALL_BYTES
    return (*dims, *((WHOLE,) if may_be_whole else ()), *((ADDENDS,) if tensor.name in room.sums else ()))


@cache
def _dims(shape: Shape, ways: int) -> tuple[int, ...]:
    """Return the dimensions along which each worker has a part."""
    return tuple(dim for dim, size in enumerate(shape) if all(begin < end for begin, end in chunks(size, ways)))


def _runs(
    step: Dataflow,
    ways: int,
    states: Mapping[str, tuple[int, ...]],
    room: Room,
    before: Sequence[Level],
    waiting_bytes: float,
) -> dict[str, _Run]:
    """Return what there is to choose from for each node; nodes that are alike have the same options."""
    places = {name: (tensor.shape, tensor.item_bytes, states[name]) for name, tensor in step.tensors.items()}
    numbered: dict[object, int] = {}
    kind = {name: numbered.setdefault(place, len(numbered)) for name, place in places.items()}
    tensors = {node.name: tuple(dict.fromkeys(node.tensors)) for node in step.nodes}
    uses = Counter(chain.from_iterable(tensors.values()))
    known: dict[object, _Options] = {}
    same: dict[object, Table] = {}
    found: dict[str, _Run] = {}
    for node in step.nodes:
        names = tensors[node.name]
        shared = tuple([name for name in names if uses[name] > 1])
        numbers = tuple([None if name is None else names.index(name) for name in (*node.operands, *node.results)])
        use = Use(ways, is_whole=node.whole, adds=node.name in room.adding)
        addends = _addends(node, before)
        key = (id(node.call), numbers, addends, use, *[kind[name] for name in names], *map(names.index, shared))
        if key not in known:
            tables = lacking(node.call, numbers, addends, tuple(places[name] for name in names), use)
            is_shared = tuple(name in shared for name in names)
            known[key] = _options(strategies_of(node.call, use), tables, is_shared, waiting_bytes, same)
        found[node.name] = _Run(names, shared, known[key])
    return found


def _options(
    ways: tuple[Strategy | None, ...],
    tables: Sequence[Table],
    is_shared: Sequence[bool],
    waiting_bytes: float,
    same: dict[object, Table],
) -> _Options:
    """Return options of which equal tables are one array."""

    def one(table: Table) -> Table:
        return same.setdefault((table.shape, table.tobytes()), table)

    costs = tuple(one(table + waiting_bytes * (table > 0) if waiting_bytes else table) for table in tables)
    shared = [table for table, others in zip(costs, is_shared, strict=True) if others]
    own = [one(table.min(axis=1)) for table, others in zip(costs, is_shared, strict=True) if not others]
    best = Bucket((*(((axis,), table) for axis, table in enumerate(shared)), *(((), table) for table in own)))
    sizes = [table.shape[1] for table in shared]
    least = one(best.least(sizes)) if prod(sizes) <= MOST_STATES else None
    return _Options(ways, tuple(tables), costs, best, least)


def _addends(node: Node, before: Sequence[Level]) -> tuple[int, ...]:
    """Return of how many addends each operand and result of a node is the sum, by divisions before."""
    found = [1] * (len(node.operands) + len(node.results))
    for level in before:
        if not level.adds(node.name):
            for at, name in enumerate(node.operands):
                if level.states[name] == ADDENDS:
                    found[at] *= level.ways
        if level.strategies[node.name] is not None:
            for number, name in enumerate(node.results):
                if name is not None and level.sums(node.name, number) and level.states[name] != ADDENDS:
                    found[len(node.operands) + number] *= level.ways
    return tuple(found)


# What is chosen -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The numbers of the ways to run nodes and of the states of tensors, and what they cost."""

    ways: Mapping[str, int]
    states: Mapping[str, int]
    cost: float
    is_exact: bool


def _cheapest(step: Dataflow, states: Mapping[str, tuple[int, ...]], runs: Mapping[str, _Run]) -> _Chosen:
    """Choose for each call by itself, if there are not too many; where that is not exact, for those alike at once, too.

    Of choices that are not exact the cheapest is returned.
    """
    best: _Chosen | None = None
    if len(runs) <= MOST_CALLS:
        best = _for_each(states, runs)
        if best.is_exact:
            return best
    options = {name: id(run.options) for name, run in runs.items()}
    for alike in islice(kinds(step, states, options), 1, 1 + ROUNDS):
        found = _for_those_alike(states, runs, *alike)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None, "something was tried"
    return replace(best, is_exact=False)


def _for_each(states: Mapping[str, Sequence[int]], runs: Mapping[str, _Run]) -> _Chosen:
    """Choose a state for each tensor, and a way to run each node.

    What is chosen together is the states of tensors that several nodes use, and the ways of nodes that use many.
    """
    choices = Choices()
    shared = dict.fromkeys(tensor for run in runs.values() for tensor in run.shared)
    state_of = {tensor: choices.add_variable(len(states[tensor])) for tensor in shared}
    way_of: dict[str, int] = {}
    for name, run in runs.items():
        scope = tuple([state_of[tensor] for tensor in run.shared])
        if run.options.least is not None:
            choices.add_cost(scope, run.options.least)
            continue
        way_of[name] = way = choices.add_variable(len(run.options.ways))
        for axes, table in run.options.best.costs:
            choices.add_cost((way, *[scope[axis] for axis in axes]), table)
    found = choices.cheapest(MOST_ENTRIES)
    chosen = dict.fromkeys(states, 0) | {tensor: found.choices[state] for tensor, state in state_of.items()}
    ways: dict[str, int] = {}
    for name, run in runs.items():
        around = tuple([chosen[tensor] for tensor in run.shared])
        ways[name] = found.choices[way_of[name]] if name in way_of else run.options.best.choice(around)
        if len(run.shared) < len(run.tensors):
            for tensor, table in zip(run.tensors, run.options.costs, strict=True):
                chosen[tensor] = chosen[tensor] if tensor in shared else int(table[ways[name]].argmin())
    return _Chosen(ways, chosen, found.cost, found.is_exact)


def _for_those_alike(
    states: Mapping[str, Sequence[int]], runs: Mapping[str, _Run], nodes: Mapping[str, int], tensors: Mapping[str, int]
) -> _Chosen:
    """Choose one state for the tensors of each kind, and one way for its nodes."""
    choices = Choices()
    state_sizes = {tensors[name]: len(domain) for name, domain in states.items()}
    state_of = {kind: choices.add_variable(size) for kind, size in state_sizes.items()}
    way_sizes = {nodes[name]: len(run.options.ways) for name, run in runs.items()}
    way_of = {kind: choices.add_variable(size) for kind, size in way_sizes.items()}
    for node, tensor, table in _costs(runs, nodes, tensors):
        choices.add_cost((way_of[node], state_of[tensor]), table)
    found = choices.cheapest(MOST_ENTRIES_ALIKE)
    return _Chosen(
        {name: found.choices[way_of[nodes[name]]] for name in runs},
        {name: found.choices[state_of[tensors[name]]] for name in states},
        found.cost,
        found.is_exact,
    )


def _costs(
    runs: Mapping[str, _Run], nodes: Mapping[str, int], tensors: Mapping[str, int]
) -> Iterator[tuple[int, int, Table]]:
    """Yield a kind of nodes, one of tensors, and a table of their costs, times as often as they meet in it."""
    tables = {id(table): table for run in runs.values() for table in run.options.costs}
    counts: dict[tuple[int, int, int], int] = {}
    for name, run in runs.items():
        for tensor, table in zip(run.tensors, run.options.costs, strict=True):
            key = (nodes[name], tensors[tensor], id(table))
            counts[key] = counts.get(key, 0) + 1
    for (node, tensor, number), count in counts.items():
        yield node, tensor, tables[number] * count if count > 1 else tables[number]
