"""What does memory buy? Seconds of a step against its budget, and the smallest budget for a given slowdown.

Slowdown is the seconds of a plan over those of the step in core, both by the same costs. Less memory is never quicker,
so the smallest budget is found by halving the range between the floor and the peak in core. The orders of one problem,
which take time to find, serve every budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outgrow.errors import Infeasible
from outgrow.plan import UNLIMITED, Budget, Plan
from outgrow.planning.order.lean import Orders
from outgrow.planning.planner import planned

_CLOSE = 0.01
"""Two budgets that differ by less than this share of the peak in core count as the same."""


@dataclass(frozen=True, slots=True)
class Point:
    """A budget in bytes and the slowdown of the plan under it."""

    budget_bytes: int
    slowdown: float


def slowdown_of(plan: Plan) -> float:
    """Return the seconds of a plan over those of the step in core."""
    return plan.predicted.seconds / plan.in_core.seconds if plan.in_core.seconds else 1.0


def range_of(orders: Orders) -> tuple[int, int]:
    """Return the floor, and the smallest budget under which the step runs as it is."""
    plan = _within(UNLIMITED, orders)
    return plan.floor_bytes, plan.in_core.peak_bytes + orders.problem.budget.overhead_bytes


def curve(orders: Orders, budgets: Sequence[int], *, planner: str = "search") -> tuple[Point, ...]:
    """Return a point for each budget, from the largest down; budgets below the floor have none."""
    found = list[Point]()
    for number, size_bytes in enumerate(sorted(budgets, reverse=True)):
        orders.problem.progress("plan", number / len(budgets))
        try:
            plan = _within(size_bytes, orders, planner)
        except Infeasible:
            break
        found.append(Point(size_bytes, slowdown_of(plan)))
    return tuple(found)


def smallest_budget(orders: Orders, slowdown: float, *, planner: str = "search", least_bytes: int = 0) -> Point:
    """Return the smallest budget whose plan is at most `slowdown` times as slow as the step in core.

    It is found to a hundredth of the peak in core, and is at least `least_bytes`.
    """
    floor, in_core = range_of(orders)
    lowest, enough = max(floor, least_bytes), Point(max(in_core, least_bytes), 1.0)
    close = _CLOSE * enough.budget_bytes

    def tried(size_bytes: int) -> Point | None:
        try:
            plan = _within(size_bytes, orders, planner)
        except Infeasible:
            return None
        found = slowdown_of(plan)
        return Point(size_bytes, found) if found <= slowdown else None

    at_floor = tried(lowest)
    if at_floor is not None:
        return at_floor
    while enough.budget_bytes - lowest > close:
        middle = (enough.budget_bytes + lowest) // 2
        found = tried(middle)
        if found is None:
            lowest = middle
        else:
            enough = found
    return enough


def _within(size_bytes: int, orders: Orders, planner: str = "search") -> Plan:
    """Return a plan under a budget; raises `Infeasible`."""
    budget = Budget(size_bytes, orders.problem.budget.overhead_bytes)
    return planned(replace(orders.problem, budget=budget), planner, prove=False, orders=orders).plan
