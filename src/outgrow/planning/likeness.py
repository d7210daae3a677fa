"""Which calls of a step are alike? Those of repeated layers, and of the time steps of a recurrence.

Two calls are alike if they are equal, the calls that make their operands are alike, and so are the calls that use
their results: followed a few calls far in each direction, so that all layers but the outermost count as one. This is
colour refinement (B. Weisfeiler, A. Leman, "The reduction of a graph to canonical form", 1968) with a limit. It looks
at structure alone, not at names.
"""

from collections.abc import Mapping, Sequence

from outgrow.operators.dataflow import Dataflow


def kinds(
    step: Dataflow, states: Mapping[str, Sequence[int]], ways: Mapping[str, int], rounds: int
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the number of the kind of each node, and of each tensor; those alike for so many calls have one number.

    Those of one kind have the same `states`, or number of `ways`, to choose from.
    """
    nodes = _numbered({n.name: (n.call, ways[n.name], tuple(name is None for name in n.results)) for n in step.nodes})
    tensors = _numbered({t.name: (t.shape, t.item_bytes, t.lasting, states[t.name]) for t in step.tensors.values()})
    for _ in range(rounds):
        uses: dict[str, list[tuple[int, int]]] = {name: [] for name in step.tensors}
        for node in step.nodes:
            places = (*node.operands, *node.results)
            for at, name in enumerate(places):
                if name is not None:
                    uses[name].append((nodes[node.name], at))
        tensors = _numbered({name: (kind, tuple(sorted(set(uses[name])))) for name, kind in tensors.items()})
        seen = {
            node.name: tuple(None if name is None else tensors[name] for name in (*node.operands, *node.results))
            for node in step.nodes
        }
        nodes = _numbered({name: (kind, seen[name]) for name, kind in nodes.items()})
    return nodes, tensors


def _numbered(keys: Mapping[str, object]) -> dict[str, int]:
    numbers: dict[object, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}
