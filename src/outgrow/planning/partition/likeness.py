"""Which calls of a step are alike? Those of repeated layers, and of the time steps of a recurrence.

Two calls are alike if they are equal, the calls that make their operands are alike, and so are the calls that use
their results: followed a few calls far in each direction, so that all layers but the outermost count as one. This is
colour refinement (B. Weisfeiler, A. Leman, "The reduction of a graph to canonical form", 1968) with a limit. It looks
at structure alone, not at names.
"""

from collections.abc import Iterator, Mapping, Sequence

from outgrow.operators.dataflow import Dataflow

Kinds = tuple[Mapping[str, int], Mapping[str, int]]
"""The number of the kind of each node, and of each tensor."""


def kinds(step: Dataflow, states: Mapping[str, Sequence[int]], options: Mapping[str, int]) -> Iterator[Kinds]:
    """Yield which nodes and tensors are alike if one looks no further, one call far, two calls, and so on.

    Tensors of one kind have the same `states` to choose from, and nodes of one kind the same number in `options`, which
    only nodes with equal calls share.
    """
    missing = {node.name: tuple(name is None for name in node.results) for node in step.nodes}
    nodes = _numbered({name: (options[name], found) for name, found in missing.items()})
    tensors = _numbered({t.name: (t.shape, t.item_bytes, t.lasting, states[t.name]) for t in step.tensors.values()})
    while True:
        yield nodes, tensors
        nodes, tensors = _refined(step, nodes, tensors)


def _refined(step: Dataflow, nodes: Mapping[str, int], tensors: Mapping[str, int]) -> Kinds:
    """Return kinds that tell apart what has neighbours of other kinds."""
    uses: dict[str, set[tuple[int, int]]] = {name: set() for name in step.tensors}
    for node in step.nodes:
        kind = nodes[node.name]
        for at, name in enumerate((*node.operands, *node.results)):
            if name is not None:
                uses[name].add((kind, at))
    tensors = _numbered({name: (kind, frozenset(uses[name])) for name, kind in tensors.items()})
    of = {**tensors, None: -1}
    seen = {n.name: (nodes[n.name], *[of[name] for name in (*n.operands, *n.results)]) for n in step.nodes}
    return _numbered(seen), tensors


def _numbered(keys: Mapping[str, object]) -> dict[str, int]:
    numbers: dict[object, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}
