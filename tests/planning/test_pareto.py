"""Less memory is never quicker, and the smallest budget is the edge of what a slowdown allows."""

from outgrow.planning.order.lean import Orders
from outgrow.planning.pareto import curve, range_of, smallest_budget
from tests.planning.test_planners import chain, problem_of


def test_the_curve_falls_with_memory() -> None:
    """From the largest budget down, each plan is at least as slow as the one before; below the floor there is none."""
    problem = problem_of(chain(8), 1 << 40)
    floor, in_core = range_of(Orders(problem))
    points = curve(Orders(problem), [in_core, floor, (floor + in_core) // 2, floor - 1])
    assert [point.budget_bytes for point in points] == [in_core, (floor + in_core) // 2, floor]
    slowdowns = [point.slowdown for point in points]
    assert slowdowns[0] == 1.0
    assert slowdowns == sorted(slowdowns)


def test_the_smallest_budget_keeps_the_slowdown() -> None:
    """It lies between floor and peak, and what is asked for decides where."""
    problem = problem_of(chain(8), 1 << 40)
    floor, in_core = range_of(Orders(problem))
    none, little, much = (smallest_budget(Orders(problem), slowdown) for slowdown in (1.0, 1.1, 100.0))
    assert floor == much.budget_bytes <= little.budget_bytes <= none.budget_bytes <= in_core
    assert little.slowdown <= 1.1
