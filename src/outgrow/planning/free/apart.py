"""Which ops should be taken apart? Those that could set the floor, if that makes smaller ones of them.

    need(k) > floor / 2          (`planning.floor`)

An op has two parts, which together touch what it touches, so one of them needs at least half of what it needs. An op
that needs half of the floor or less therefore needs no more than the parts of an op that sets the floor. It pays only
where each part does without at least `minimum_bytes` of what the op touches. The parts together take as long as the
whole; these limits only keep the program short.
"""

from collections.abc import Iterable

from outgrow.ir.graph import Graph, Op, asking_layouts
from outgrow.operators.layouts import layout_only
from outgrow.operators.parts import parts
from outgrow.plan import TakeApart
from outgrow.planning.floor import in_the_way
from outgrow.planning.free.admitted import admitted
from outgrow.planning.problem import Problem


def taken_apart(problem: Problem, graph: Graph) -> tuple[Graph, tuple[TakeApart, ...]]:
    """Return the graph in which the ops that may be in the way are taken apart, and the decisions."""
    large = [op for op in in_the_way(problem, graph) if _spared_bytes(graph, op) >= problem.minimum_bytes]
    return _apart(problem, graph, large)


def all_apart(problem: Problem, graph: Graph) -> Graph:
    """Return the graph in which every op is taken apart that has parts."""
    return _apart(problem, graph, graph.ops)[0]


def _spared_bytes(graph: Graph, op: Op) -> int:
    """The bytes of what `op` touches that every one of its parts does without, at least."""
    whole = [name for name in graph.touched(op) if not graph.storages[name].is_persistent]
    touched = [graph.touched(asking_layouts(part, layout_only(part))) for part in parts(op)]
    spared = [[graph.storages[name].size_bytes for name in whole if name not in own] for own in touched]
    return min(map(sum, spared), default=0)


def _apart(problem: Problem, graph: Graph, ops: Iterable[Op]) -> tuple[Graph, tuple[TakeApart, ...]]:
    """Take ops apart where the law admits it and the parts have a cost."""
    able = [op for op in ops if parts(op) and all(part.name in problem.costs for part in parts(op))]
    return admitted(graph, ([TakeApart(op.name)] for op in able))
