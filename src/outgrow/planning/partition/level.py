"""How is a step divided once, with the least communication? Each worker, or group of them, has a part of each tensor.

Costs of a call are sums over its tensors, and each term depends on one strategy and one state
(`planning.partition.options`): the cheapest choice of all is found exactly (`planning.partition.elimination`). Where
calls are too entangled for that, such as over many time steps, it is the cheapest choice in which calls that are alike
are cut alike (`planning.partition.likeness`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod

from outgrow.operators.dataflow import Dataflow
from outgrow.operators.strategies import Partial, Strategy
from outgrow.planning.partition.elimination import Choices, Table
from outgrow.planning.partition.likeness import kinds
from outgrow.planning.partition.options import Options, Terms, Used, options_of_nodes, states_of
from outgrow.planning.partition.room import ADDED, ADDENDS

MOST_CALLS = 1 << 12
"""In steps of at most this many calls, each call is chosen for by itself."""
MOST_ENTRIES = 1 << 22
"""How large tables may be then."""
ROUNDS, MOST_ENTRIES_ALIKE = 2, 1 << 18
"""Up to how many calls around them calls must be alike to be chosen for at once, and how large tables may be then."""


@dataclass(frozen=True, slots=True)
class Level:
    """One division: into how many, the state of each tensor, the strategy of each node (None: whole), and the bytes.

    `received` are the bytes that one worker receives for each node, in this division and those before it;
    `communicated_bytes` are the bytes that this division adds, for all workers and nodes.
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
class _Menu:
    """What nodes use, what there is to choose from for each of them, and the states that each tensor may have."""

    used: Mapping[str, Used]
    options: Mapping[str, Options]
    states: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The numbers of the ways to run nodes and of the states of tensors, and what they cost."""

    ways: Mapping[str, int]
    states: Mapping[str, int]
    cost: float
    is_exact: bool


def divided_once(step: Dataflow, used: Mapping[str, Used], before: Sequence[Level], terms: Terms) -> Level:
    """Return the cheapest way to divide each of the groups of workers to which divisions `before` led."""
    states = {name: states_of(tensor, terms.ways, terms.room) for name, tensor in step.tensors.items()}
    states |= {name: (state,) for name, state in terms.fixed.items()}
    options = options_of_nodes(step, used, states, _addends(step, before), terms)
    chosen = _cheapest(step, _Menu(used, options, states))
    lacked: dict[str, float] = {}
    for name, own in options.items():
        way, tables = chosen.ways[name], zip(used[name].tensors, own.lacking, strict=True)
        lacked[name] = sum([table.item(way, chosen.states[tensor]) for tensor, table in tables])
    groups = prod(level.ways for level in before)
    return Level(
        terms.ways,
        {name: domain[chosen.states[name]] for name, domain in states.items()},
        {name: own.ways[chosen.ways[name]] for name, own in options.items()},
        {name: size_bytes / terms.ways for name, size_bytes in lacked.items()},
        groups * sum(lacked.values()) - sum(item.communicated_bytes for item in before),
        chosen.is_exact,
    )


def _addends(step: Dataflow, before: Sequence[Level]) -> dict[str, tuple[int, ...]]:
    """Return, for each node with a sum left by earlier divisions, how many addends each operand and result sums up."""
    found: dict[str, list[int]] = {}
    for level in before:
        have_addends = ADDENDS in level.states.values()
        for node in step.nodes:
            strategy = level.strategies[node.name]
            is_sum = strategy is not None and any(level.sums(node.name, at) for at in range(len(node.results)))
            if not is_sum and not have_addends:
                continue
            counts = found.setdefault(node.name, [1] * (len(node.operands) + len(node.results)))
            for at, name in enumerate(node.operands):
                counts[at] *= level.ways if level.states[name] == ADDENDS and strategy is not ADDED else 1
            for at, name in enumerate(node.results):
                if name is not None and level.sums(node.name, at) and level.states[name] != ADDENDS:
                    counts[len(node.operands) + at] *= level.ways
    return {name: tuple(counts) for name, counts in found.items()}


# What is chosen -----------------------------------------------------------------------------------------------------


def _cheapest(step: Dataflow, menu: _Menu) -> _Chosen:
    """Choose for each call by itself if there are not too many; unless that is exact, also for all calls alike at once.

    Of choices that are not exact the cheapest is returned.
    """
    best: _Chosen | None = None
    if len(step.nodes) <= MOST_CALLS:
        best = _for_each(menu)
        if best.is_exact:
            return best
    numbers = {name: id(own) for name, own in menu.options.items()}
    for nodes, tensors in islice(kinds(step, menu.states, numbers), 1, 1 + ROUNDS):
        found = _for_those_alike(menu, nodes, tensors)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None, "something was tried"
    return replace(best, is_exact=False)


def _for_each(menu: _Menu) -> _Chosen:
    """Choose a state for each tensor, and a way to run each node.

    Chosen together are the states of tensors that several nodes use, and the ways of nodes that use many of these.
    """
    choices = Choices()
    shared = dict.fromkeys(tensor for own in menu.used.values() for tensor in own.shared)
    state_of = {tensor: choices.add_variable(len(menu.states[tensor])) for tensor in shared}
    way_of: dict[str, int] = {}
    for name, own in menu.options.items():
        scope = tuple([state_of[tensor] for tensor in menu.used[name].shared])
        if own.least is not None:
            choices.add_cost(scope, own.least)
            continue
        way_of[name] = way = choices.add_variable(len(own.ways))
        for axes, table in own.best.costs:
            choices.add_cost((way, *[scope[axis] for axis in axes]), table)
    found = choices.cheapest(MOST_ENTRIES)
    states = dict.fromkeys(menu.states, 0) | {tensor: found.choices[state] for tensor, state in state_of.items()}
    ways: dict[str, int] = {}
    for name, own in menu.options.items():
        used = menu.used[name]
        if own.least is None:
            ways[name] = found.choices[way_of[name]]
        else:
            ways[name] = own.best.choice(tuple([states[tensor] for tensor in used.shared]))
        if len(used.shared) < len(used.tensors):
            for tensor, table in zip(used.tensors, own.costs, strict=True):
                states[tensor] = states[tensor] if tensor in shared else int(table[ways[name]].argmin())
    return _Chosen(ways, states, found.cost, found.is_exact)


def _for_those_alike(menu: _Menu, nodes: Mapping[str, int], tensors: Mapping[str, int]) -> _Chosen:
    """Choose one state for the tensors of each kind, and one way for its nodes."""
    choices = Choices()
    state_sizes = {tensors[name]: len(domain) for name, domain in menu.states.items()}
    state_of = {kind: choices.add_variable(size) for kind, size in state_sizes.items()}
    way_sizes = {nodes[name]: len(own.ways) for name, own in menu.options.items()}
    way_of = {kind: choices.add_variable(size) for kind, size in way_sizes.items()}
    for node, tensor, table in _costs(menu, nodes, tensors):
        choices.add_cost((way_of[node], state_of[tensor]), table)
    found = choices.cheapest(MOST_ENTRIES_ALIKE)
    return _Chosen(
        {name: found.choices[way_of[nodes[name]]] for name in menu.options},
        {name: found.choices[state_of[tensors[name]]] for name in menu.states},
        found.cost,
        found.is_exact,
    )


def _costs(menu: _Menu, nodes: Mapping[str, int], tensors: Mapping[str, int]) -> Iterator[tuple[int, int, Table]]:
    """Yield a kind of nodes, a kind of tensors, and a table of their costs, multiplied by how often they meet so."""
    tables = {id(table): table for own in menu.options.values() for table in own.costs}
    counts: dict[tuple[int, int, int], int] = {}
    for name, own in menu.options.items():
        for tensor, table in zip(menu.used[name].tensors, own.costs, strict=True):
            key = (nodes[name], tensors[tensor], id(table))
            counts[key] = counts.get(key, 0) + 1
    for (node, tensor, number), count in counts.items():
        yield node, tensor, tables[number] * count if count > 1 else tables[number]
