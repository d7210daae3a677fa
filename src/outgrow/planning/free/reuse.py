"""Which results may be written over a dying operand? Every one that the law of re-use admits and that is large."""

from collections.abc import Iterator

from outgrow.ir.graph import Graph, Op
from outgrow.operators.in_place import IN_PLACE, PLACED
from outgrow.operators.stalls import slowdown
from outgrow.plan import Reuse
from outgrow.planning.free.admitted import admitted
from outgrow.planning.problem import Problem


def reuses(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Reuse, ...]]:
    """Return the graph with results written in place where the law admits it, and the decisions, in order."""
    return admitted(graph, (ways(problem, graph, op) for op in graph.ops if _is_large(problem, graph, op)))


def _is_large(problem: Problem, graph: Graph, op: Op) -> bool:
    sizes = [graph.storages[name].size_bytes for name in graph.written(op)]
    return max(sizes, default=0) >= problem.minimum_bytes


def ways(problem: Problem, graph: Graph, op: Op) -> Iterator[Reuse]:
    """The ways of writing over an operand that this machine has for an op of a graph."""
    for form in IN_PLACE.get(op.operator, ()):
        is_had = problem.machine.device.places_results or form.operator not in PLACED
        if is_had and (problem.stalls or slowdown(graph.values, op, form.operator) == 1):
            yield Reuse(op.name, form.operand)
