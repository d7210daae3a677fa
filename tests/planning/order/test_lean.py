"""Where branches cross, the search knows an order in which more fits; in a chain there is none."""

from dataclasses import replace
from itertools import pairwise

import pytest

from outgrow.analysis.liveness import peak_bytes
from outgrow.errors import Infeasible
from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, Move
from outgrow.planning.bound.bound import bound_seconds
from outgrow.planning.floor import floor_of
from outgrow.planning.order import lean
from outgrow.planning.order.lean import Orders, least_seconds
from outgrow.planning.pareto import range_of, smallest_budget
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import apply_laws
from tests.planning.irregular import irregular
from tests.planning.test_planners import problem_of
from tests.verified import verify_derived

BRANCHES = 6
LARGE, SMALL = 1 << 20, 1 << 10


def branches() -> Graph:
    """Each branch makes much of the input and little of that; all of the former are captured first."""
    lines = ["storage x input 1024", "value %x: x@0 f32[256]"]
    for at in range(BRANCHES):
        lines += [f"storage wide{at} {LARGE}", f"%wide{at}: wide{at}@0 f32[{LARGE // 4}] = my.wide(%x)"]
    for at in range(BRANCHES):
        lines += [f"storage thin{at} {SMALL}", f"%thin{at}: thin{at}@0 f32[{SMALL // 4}] = my.thin(%wide{at})"]
    operands = ", ".join(f"%thin{at}" for at in range(BRANCHES))
    lines += ["storage loss 4", f"%loss: loss@0 f32[1] = my.loss({operands})", "return %loss"]
    return parse_graph("\n".join(lines))


def chain() -> Graph:
    """One op after the other."""
    lines = ["storage x input 1024", "value %x: x@0 f32[256]"]
    names = ["x", *(f"a{at}" for at in range(8))]
    for before, name in pairwise(names):
        lines += [f"storage {name} {LARGE}", f"%{name}: {name}@0 f32[{LARGE // 4}] = my.one(%{before})"]
    gradient = names[-1]
    for name in reversed(names[1:]):
        lines += [f"storage g{name} 4", f"%g{name}: g{name}@0 f32[1] = my.back(%{name}, %{gradient})"]
        gradient = f"g{name}"
    return parse_graph("\n".join([*lines, f"return %{gradient}"]))


def under(problem: Problem, budget: int) -> Problem:
    return replace(problem, budget=Budget(budget))


def test_a_chain_has_one_order() -> None:
    """What cannot be better is not another order."""
    problem = problem_of(chain(), 1 << 30)
    assert [moves for _, moves in Orders(problem)] == [()]
    tight = under(problem, 3 * LARGE)
    assert least_seconds(tight, Orders(tight)) == bound_seconds(tight)


def test_branches_that_end_thin_run_one_by_one() -> None:
    """In the lean order the step fits where the captured one would have to move or repeat."""
    problem = problem_of(branches(), 1 << 30)
    (_, none), (graph, moves) = Orders(problem)
    assert none == ()
    assert moves
    verify_derived(graph, problem.graph)
    assert apply_laws(problem.graph, moves) == graph
    assert peak_bytes(graph, {}) < 2 * LARGE
    arithmetic = sum(cost.seconds for cost in problem.costs.values())
    found = planned(under(problem, 2 * LARGE))
    assert any(isinstance(decision, Move) for decision in found.plan.decisions)
    assert found.simulated.seconds == pytest.approx(arithmetic)
    assert found.simulated.peak_bytes <= 2 * LARGE
    assert found.plan.bound_seconds == pytest.approx(arithmetic)


def test_a_budget_that_only_the_lean_order_keeps_is_not_refused() -> None:
    """Where nothing may move the captured order needs all branches at once; a refusal names the lean one's floor."""
    problem = replace(problem_of(branches(), 1 << 30), minimum_bytes=1 << 40, least_bytes=1 << 40)
    captured, _ = floor_of(problem, problem.graph)
    assert captured > BRANCHES * LARGE
    found = planned(under(problem, 2 * LARGE))
    assert found.simulated.peak_bytes <= 2 * LARGE
    assert found.plan.floor_bytes <= 2 * LARGE
    with pytest.raises(Infeasible) as refusal:
        planned(under(problem, found.plan.floor_bytes - 1))
    assert refusal.value.floor_bytes == found.plan.floor_bytes


def test_the_floor_is_that_of_the_lean_order_under_any_budget() -> None:
    """It is named where the captured order fits, and is where the smallest budget is looked for."""
    problem = replace(problem_of(branches(), 1 << 30), minimum_bytes=1 << 40, least_bytes=1 << 40)
    floor = planned(problem).plan.floor_bytes
    assert planned(problem).plan.is_empty
    assert floor <= 2 * LARGE
    assert planned(under(problem, floor)).plan.floor_bytes == floor
    assert range_of(Orders(problem))[0] == floor
    assert smallest_budget(Orders(problem), 1.0).budget_bytes == floor


def test_the_lean_order_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search, floor and bound of one planning ask for it."""
    asked: list[Problem] = []
    found = lean._moves
    monkeypatch.setattr(lean, "_moves", lambda problem: (asked.append(problem), found(problem))[1])
    planned(under(problem_of(branches(), 1 << 30), 2 * LARGE))
    assert len(asked) == 1


def test_plans_of_one_step_share_what_can_be_had_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order is rewritten once, for a quick plan, a thorough one and the floor, and the plans are the same."""
    asked: list[Problem] = []
    found = lean.without_reuses
    monkeypatch.setattr(lean, "without_reuses", lambda problem: (asked.append(problem), found(problem))[1])
    problem = under(problem_of(branches(), 1 << 30), 2 * LARGE)
    orders = Orders(problem)
    plans = [planned(replace(problem, quick=quick), orders=orders).plan for quick in (True, False)]
    assert len(asked) == 2
    assert [plan.decisions for plan in plans] == [
        planned(replace(problem, quick=quick)).plan.decisions for quick in (True, False)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_irregular_steps_keep_their_budget_and_their_bound(seed: int) -> None:
    """A plan in either order is verified, fits, and is not below what `least_seconds` says."""
    problem = problem_of(irregular(seed, 60), 1 << 40)
    orders = Orders(problem)
    for graph, _ in orders:
        verify_derived(graph, problem.graph)
    problem = under(problem, peak_bytes(problem.graph, {}) * 2 // 3)
    found = planned(problem)
    verify_derived(found.stages[-1].graph, problem.graph)
    assert found.simulated.peak_bytes <= problem.budget.capacity_bytes
    assert found.simulated.seconds >= least_seconds(problem, orders) * (1 - 1e-9)
