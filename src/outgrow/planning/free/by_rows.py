"""Which ops should run as one, some rows at a time? All that can, where what the second reads of rows dies there.

Then the result is written over it (`reuse`), and no more is asked for than by either op alone.
"""

from collections.abc import Iterator

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
