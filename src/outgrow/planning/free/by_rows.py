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


def quickest(problem: Problem) -> Mapping[str, Cost]:
    """Return the costs of a problem, in which two ops that run as one take no longer than both."""
    costs, found = problem.costs, dict[str, Cost]()
    for first, second, one in pairs(problem.graph):
        if one.name in costs:
            both = problem.seconds_of(first) + problem.seconds_of(second)
            found[one.name] = replace(costs[one.name], seconds=min(costs[one.name].seconds, both))
    return {**costs, **found} if found else costs


def spared_seconds(problem: Problem) -> float:
    """Return the seconds by which ops that run as one, some rows at a time, are quicker than both alone."""
    gains = (
        problem.seconds_of(first) + problem.seconds_of(second) - problem.seconds_of(one)
        for first, second, one in pairs(problem.graph)
        if one.name in problem.costs
    )
    return sum(max(0.0, gain) for gain in gains)
