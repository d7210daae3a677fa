"""What can be had for nothing? Rewrites that free memory and repeat or move nothing.

Updates move forward (`order`), then dying operands are written over (`reuse`). Either is given back if it raises
the floor: a storage that is written over by a result has to stay as long as the result.
"""

from outgrow.ir.graph import Graph
from outgrow.plan import Decision
from outgrow.planning.floor import floor_of
from outgrow.planning.order import early_updates
from outgrow.planning.problem import Problem
from outgrow.planning.reuse import reuses


def free_rewrites(problem: Problem) -> tuple[Graph, tuple[Decision, ...]]:
    """Return the graph after all free rewrites, whose floor is not above the captured graph's, and the decisions."""
    graph, decisions = problem.graph, ()
    floor, _ = floor_of(problem, graph)
    for rewrite in (early_updates, reuses):
        found, made = rewrite(problem, graph)
        found_floor, _ = floor_of(problem, found)
        if found_floor <= floor:
            graph, floor, decisions = found, found_floor, (*decisions, *made)
    return graph, decisions
