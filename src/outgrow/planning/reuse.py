"""Which results may be written over a dying operand? Every one that the law of re-use admits and that is large."""

from collections.abc import Iterator

from outgrow.errors import NotApplicable
from outgrow.ir.graph import Graph, Op
from outgrow.operators.in_place import IN_PLACE, PLACED
from outgrow.plan import Reuse
from outgrow.planning.problem import Problem
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.reuse import reuse


def reuses(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Reuse, ...]]:
    """Return the graph with results written in place where the law admits it, and the decisions, in order."""
    decisions: list[Reuse] = []
    draft = Draft(graph)
    for op in graph.ops:
        sizes = [graph.storages[name].size_bytes for name in graph.written(op)]
        if op.operator not in IN_PLACE or max(sizes, default=0) < problem.minimum_bytes:
            continue
        for decision in ways(problem, op):
            try:
                reuse(draft, decision)
            except NotApplicable:
                continue
            decisions.append(decision)
            break
    return draft.graph(), tuple(decisions)


def ways(problem: Problem, op: Op) -> Iterator[Reuse]:
    """The ways of writing over an operand that this machine has for an op."""
    for form in IN_PLACE.get(op.operator, ()):
        if problem.machine.device.places_results or form.operator not in PLACED:
            yield Reuse(op.name, form.operand)
