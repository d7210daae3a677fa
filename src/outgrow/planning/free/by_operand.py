"""Which ops should put their operands into the result one after the other? Those that could set the floor.

Of such an op each turn needs the result and one operand. That is more than half of what the op needs, so an op that
needs half of the floor or less needs no more than any turn of one that sets it, as in `planning.free.apart`. What was
made last is put there first: it is there already, while what was made long before may be away until its turn.
"""

from collections.abc import Collection, Iterable

from outgrow.ir.graph import Graph, Op
from outgrow.operators.in_turn import in_turn, operand_of
from outgrow.plan import ByOperand
from outgrow.planning.floor import in_the_way
from outgrow.planning.free.admitted import admitted
from outgrow.planning.leaving import leaving
from outgrow.planning.problem import Problem


def put_in_turn(problem: Problem, graph: Graph) -> tuple[Graph, tuple[ByOperand, ...]]:
    """Return the graph in which ops in the way put their operands into the result in turn, and the decisions."""
    if not problem.in_turn:
        return graph, ()
    away = leaving(problem, graph)
    large = [op for op in in_the_way(problem, graph) if _spared_bytes(graph, op, away) >= problem.minimum_bytes]
    return _in_turn(problem, graph, large)


def all_in_turn(problem: Problem, graph: Graph) -> Graph:
    """Return the graph in which all ops that can put their operands into the result in turn."""
    return _in_turn(problem, graph, graph.ops)[0]


def _in_turn(problem: Problem, graph: Graph, ops: Iterable[Op]) -> tuple[Graph, tuple[ByOperand, ...]]:
    """Let ops put their operands into the result in turn where the law admits it and the turns have a cost."""
    able = [op for op in ops if _storages(graph, op) and f"{op.name}.0" in problem.costs]
    last_written = {name: at for at, names in enumerate(graph.written_at) for name in names} if able else {}

    def order(op: Op) -> tuple[int, ...]:
        made = [last_written.get(name, -1) for name in _storages(graph, op)]
        return tuple(sorted(range(len(made)), key=made.__getitem__, reverse=True))

    return admitted(graph, ([ByOperand(op.name, order(op))] for op in able))


def _storages(graph: Graph, op: Op) -> list[str]:
    """The storage of each operand that an op may put into its result in its turn."""
    return [graph.values[operand_of(begin)].storage for begin, _ in in_turn(op, graph.values)]


def _spared_bytes(graph: Graph, op: Op, away: Collection[str]) -> int:
    """The bytes of what `op` touches that every turn does without, at least: of what dies, or may be `away`."""
    declared = [graph.storages[name] for name in set(_storages(graph, op))]
    sizes = [storage.size_bytes for storage in declared if storage.name in away or not storage.is_persistent]
    return sum(sizes) - max(sizes, default=0)
