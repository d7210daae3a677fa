"""Which ops should run as one, some rows at a time? All that can, where what the second reads of rows dies there.

Then the result is written over it (`reuse`), and no more is asked for than by either op alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Graph
from outgrow.operators.rows import LOG_PROBABILITIES, pairs
from outgrow.plan import ByRows
from outgrow.planning.free.admitted import admitted
from outgrow.planning.problem import Problem


def run_by_rows(problem: Problem, graph: Graph) -> tuple[Graph, tuple[ByRows, ...]]:
    """Return the graph in which ops run as one, some rows at a time, and the decisions."""
    return admitted(graph, ([decision] for decision in _ways(problem, graph)))


def _ways(problem: Problem, graph: Graph) -> Iterator[ByRows]:
    for first, second, one in pairs(graph):
        read = graph.values[one.references[LOG_PROBABILITIES]].storage
        if one.name in problem.costs and read in graph.dying_at.get(graph.op_positions[second.name], ()):
            yield ByRows(first.name, second.name)


def either_way(problem: Problem, graph: Graph) -> tuple[Graph, Mapping[str, Cost]]:
    """Return a graph and costs that ask for no more than a step in which two ops run as one, or one after the other.

    What the first of them makes takes no room, and both take no longer, and no more workspace, than as one.
    """
    storages, costs = dict(graph.storages), dict(problem.costs)
    _, found = run_by_rows(problem, graph)
    for first, second, one in pairs(graph) if found else ():
        if ByRows(first.name, second.name) in found:
            joint, both = costs[one.name], problem.seconds_of(first) + problem.seconds_of(second)
            share = min(1.0, joint.seconds / both) if both else 1.0
            for name in (first.name, second.name):
                workspace = min(costs[name].workspace_bytes, joint.workspace_bytes)
                costs[name] = replace(costs[name], seconds=share * costs[name].seconds, workspace_bytes=workspace)
            storages |= {name: replace(storages[name], size_bytes=0) for name in graph.written(first)}
    return replace(graph, storages=storages), costs


def spared_seconds(problem: Problem) -> float:
    """Return the seconds by which ops that run as one, some rows at a time, are quicker than both alone."""
    gains = (
        problem.seconds_of(first) + problem.seconds_of(second) - problem.seconds_of(one)
        for first, second, one in pairs(problem.graph)
        if one.name in problem.costs
    )
    return sum(max(0.0, gain) for gain in gains)
