"""Which step time can no plan beat? So far: the arithmetic alone.

    bound = sum of the seconds of every captured op

Every plan runs each captured op at least once (an exact law neither removes one nor makes it quicker), and one
device runs one op at a time, so no plan under any budget is faster. The bound ignores the link: recomputation
may replace any transfer, so bytes over capacity do not bound the time by themselves.
"""

from outgrow.planning.problem import Problem


def bound_seconds(problem: Problem) -> float:
    """Return seconds below which no plan for the problem can come."""
    return sum(problem.costs[op.captured].seconds for op in problem.graph.ops if op.captured in problem.costs)
