"""How many bytes does a step hold if some storages are built again? Counted without rewriting the graph.

A method that compares many ways to repeat work asks this of each. It is what `analysis.liveness.live_bytes` says of
the graph that the law of recomputation gives: each repetition of a chain makes new storages (instances); the one that
was asked for replaces the captured one from then on, the others live as long as the chain.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from outgrow.ir.graph import Graph, Op
from outgrow.planning.problem import Problem
from outgrow.planning.published.lineage import Lineage

_Instance = tuple[str, int]
_CAPTURED = -1


def live_bytes_with(
    problem: Problem, lineage: Lineage, rebuilt: Mapping[int, Sequence[str]]
) -> tuple[tuple[Op, ...], list[int]]:
    """Return the ops that run if storages are built again, oldest first, before these steps, and the bytes at each."""
    graph = problem.graph
    ops: list[Op] = []
    current: dict[str, _Instance] = {}
    spans: dict[_Instance, tuple[int, int]] = {}

    def run(op: Op, own: Mapping[str, _Instance]) -> None:
        for name in graph.touched(op):
            instance = own.get(name, current.get(name, (name, _CAPTURED)))
            begin, _ = spans.get(instance, (len(ops), 0))
            spans[instance] = begin, len(ops)
        ops.append(op)

    for step, op in enumerate(graph.ops):
        for storage in rebuilt.get(step, ()):
            chain = lineage.chain(storage, step)
            own = {name: (name, len(ops)) for name in lineage.made(chain)}
            for repeated in chain:
                run(repeated, own)
            current[storage] = own[storage]
        run(op, {})
    workspace = problem.workspace
    held = _held(graph, spans, len(ops))
    return tuple(ops), [bytes_ + workspace.get(op.captured, 0) for bytes_, op in zip(held, ops, strict=True)]


def _held(graph: Graph, spans: Mapping[_Instance, tuple[int, int]], count: int) -> list[int]:
    """The bytes of storages at each of `count` ops."""
    delta = [0] * (count + 1)
    untouched: dict[_Instance, tuple[int, int]] = {(name, _CAPTURED): (0, count) for name in graph.storages}
    for (name, number), (begin, last) in {**untouched, **spans}.items():
        storage = graph.storages[name]
        is_input = number == _CAPTURED and name not in graph.born_at
        stays = number == _CAPTURED and name in graph.outliving
        delta[0 if is_input else begin] += storage.size_bytes
        delta[count if stays else min(last + 1, count)] -= storage.size_bytes
    return list(accumulate(delta[:count]))
