"""Which results may be written over a dying operand? Every one that the law of re-use admits and that is large.

An operand that a result is written over stays as long as the result, so that can need more than it saves: see
`stays_longer`. And what is made of an operand cannot be built again once that is written over: where it rests for long,
keeping it may cost more than the operand does. So the ops that spoil a rebuilding (`spoiling_ops`) may be told not to
write over their operands (`Problem.sparing`). If nothing is built again in the end, or nothing needs the operand for
that any longer, the search writes over it after all (`Tables.over`).
"""

from collections.abc import Collection, Iterable, Iterator

from outgrow.analysis.chains import spoiling
from outgrow.analysis.liveness import gaps
from outgrow.ir.graph import Graph, Op
from outgrow.operators.in_place import IN_PLACE, PLACED
from outgrow.operators.stalls import slowdown
from outgrow.plan import Decision, Reuse
from outgrow.planning.free.admitted import admitted
from outgrow.planning.leaving import leaving, stowing
from outgrow.planning.problem import Problem


def reuses(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Reuse, ...]]:
    """Return the graph with results written in place where the law admits it, and the decisions, in order."""
    return admitted(graph, (ways(problem, graph, op) for op in _writing(problem, graph)))


def spoiling_ops(problem: Problem, graph: Graph, made: Iterable[Decision]) -> frozenset[str]:
    """Return the ops that, by the decisions `made`, write over what a large storage would be built again from."""
    rewritten = {decision.op for decision in made if isinstance(decision, Reuse)}
    steps = {step for step, op in enumerate(graph.ops) if op.name in rewritten}
    rests = gaps(graph, minimum_bytes=problem.minimum_bytes)
    return frozenset(graph.ops[step].name for step in spoiling(graph, rests, steps))


def loose_reuses(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Reuse, ...]]:
    """Return what `reuses` does, without those for which an operand has to stay on the device longer than it must."""
    may_leave = leaving(problem, graph)
    may_stow = stowing(graph, may_leave)

    def loose(op: Op) -> Iterator[Reuse]:
        for way in ways(problem, graph, op):
            result = op.results[0] if op.results else None
            if result is not None and way.operand < len(op.references):
                target, operand = graph.values[result].storage, graph.values[op.references[way.operand]].storage
                if not stays_longer(graph, target, operand, may_leave, may_stow):
                    yield way

    return admitted(graph, (loose(op) for op in _writing(problem, graph)))


def stays_longer(
    graph: Graph, target: str, operand: str, may_leave: Collection[str], may_stow: Collection[str]
) -> bool:
    """Whether an operand's storage would have to stay as the result's does, if this were written over it.

    So it is for a result that may be stowed over a storage that exists before the step, and for one that may never
    leave over a storage that may.
    """
    return (target in may_stow and operand not in graph.born_at) or (target not in may_leave and operand in may_leave)


def _writing(problem: Problem, graph: Graph) -> Iterator[Op]:
    """Yield the ops that write something large, without those that are to spare their operands."""
    for op in graph.ops:
        sizes = [graph.storages[name].size_bytes for name in graph.written(op)]
        if max(sizes, default=0) >= problem.minimum_bytes and op.name not in problem.sparing:
            yield op


def ways(problem: Problem, graph: Graph, op: Op) -> Iterator[Reuse]:
    """The ways of writing over an operand that this machine has for an op of a graph."""
    for form in IN_PLACE.get(op.operator, ()):
        is_had = problem.machine.device.places_results or form.operator not in PLACED
        if is_had and (problem.stalls or slowdown(graph.values, op, form.operator) == 1):
            yield Reuse(op.name, form.operand)
