"""SERENITY's and OLLA's orders: exact where they say so, valid, and refused where the order alone does not fit."""

import re
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, settings

from outgrow.analysis.liveness import live_bytes
from outgrow.errors import Infeasible
from outgrow.ir.graph import Graph
from outgrow.ir.stand_ins import numbered
from outgrow.ir.verify import verify
from outgrow.plan import Budget
from outgrow.planning.order.jobs import jobs_of, live_bytes_in
from outgrow.planning.planner import planned
from outgrow.planning.published import olla as olla_module
from outgrow.planning.published import orders as orders_module
from outgrow.planning.published import serenity as serenity_module
from outgrow.planning.published.olla import jobs_with_early_updates, olla_schedule
from outgrow.planning.published.serenity import serenity_schedule
from outgrow.rewriting.derive import apply_laws
from tests.graphs import graphs
from tests.planning.irregular import irregular
from tests.planning.orders import keeps, least_peak, workspace_of
from tests.planning.published.rivals import decided
from tests.planning.test_planners import chain, problem_of


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=7))
def test_serenity_finds_the_least_peak_of_small_graphs(graph: Graph) -> None:
    """The schedule is valid, exact, and as good as the best permutation."""
    jobs = jobs_of(graph, workspace_of(graph))
    schedule = serenity_schedule(jobs)
    assert keeps(jobs.predecessors, schedule.order)
    assert schedule.is_optimal
    assert schedule.peak_bytes == max(live_bytes_in(jobs, schedule.order), default=0) == least_peak(jobs)


@settings(max_examples=30, deadline=None)
@given(graphs(max_ops=7))
def test_olla_finds_the_least_peak_of_small_graphs(graph: Graph) -> None:
    """The schedule is valid, and within the gap of the best permutation that keeps updates early."""
    _, jobs = jobs_with_early_updates(problem_of(graph, 1))
    schedule = olla_schedule(jobs)
    assert keeps(jobs.predecessors, schedule.order)
    assert schedule.is_optimal
    assert schedule.peak_bytes == max(live_bytes_in(jobs, schedule.order), default=0)
    assert schedule.peak_bytes <= least_peak(jobs) * 1.005


@settings(max_examples=20, deadline=None)
@given(graphs(max_ops=6))
def test_the_programme_agrees_without_the_help_of_a_beam(graph: Graph) -> None:
    """With a beam of one, whose peak bounds the programme loosely, the programme is as good as any permutation."""
    _, jobs = jobs_with_early_updates(problem_of(graph, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders_module, "_BEAM_WIDTH", 1)
        patch.setattr(orders_module, "_BEAM_WORK", 0)
        schedule = olla_schedule(jobs)
    assert schedule.peak_bytes <= least_peak(jobs) * 1.005


def test_a_beam_takes_over_where_states_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for a few partial schedules only, the order is not proved best, but no worse than the captured one."""
    monkeypatch.setattr(serenity_module, "_EXPANSIONS", 50)
    jobs = jobs_of(irregular(seed=1, ops=80), {})
    schedule = serenity_schedule(jobs)
    assert not schedule.is_optimal
    assert keeps(jobs.predecessors, schedule.order)
    assert schedule.peak_bytes <= max(live_bytes_in(jobs, range(len(jobs))))


def test_a_programme_that_is_too_large_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the largest size the order of the heuristic is returned, and not called optimal."""
    monkeypatch.setattr(olla_module, "_MOST_VARIABLES", 10)
    jobs = jobs_of(irregular(seed=1, ops=80), {})
    schedule = olla_schedule(jobs)
    assert not schedule.is_optimal
    assert keeps(jobs.predecessors, schedule.order)


@pytest.mark.parametrize("planner", ["serenity", "olla"])
@settings(max_examples=20, deadline=None)
@given(graph=graphs(max_ops=7))
def test_the_moves_are_a_valid_rewriting_within_the_budget(planner: str, graph: Graph) -> None:
    """The planner moves ops into an order that fits, or refuses naming what would; that budget then does."""
    peak = max(live_bytes(graph, problem_of(graph, 1).workspace), default=0)
    problem = problem_of(graph, max(1, peak - 1))
    try:
        moves = decided(problem, planner)
    except Infeasible as refusal:
        problem = problem_of(graph, refusal.floor_bytes)
        moves = decided(problem, planner)
    found = apply_laws(graph, moves)
    verify(found, captured=numbered(graph), capacity_bytes=problem.budget.capacity_bytes, workspace=problem.workspace)


@pytest.mark.parametrize("planner", ["serenity", "olla"])
def test_a_step_that_fits_is_left_alone_and_a_chain_cannot_be_helped(planner: str) -> None:
    """Nothing moves where the captured order fits; below the only order there is, the refusal names its peak."""
    graph = chain(5)
    workspace = problem_of(graph, 1).workspace
    peak = max(live_bytes(graph, workspace))
    assert decided(problem_of(graph, peak), planner) == ()
    with pytest.raises(Infeasible) as refusal:
        decided(problem_of(graph, peak - 1), planner)
    assert refusal.value.floor_bytes == peak


@pytest.mark.parametrize(
    ("planner", "module", "limit", "most", "shortfall"),
    [
        ("olla", olla_module, "_MOST_VARIABLES", 60_000, "stopped after 0.001 s, best order so far"),
        (
            "olla",
            olla_module,
            "_MOST_VARIABLES",
            10,
            r"its programme would have \d+ variables, more than 10; .* beam search",
        ),
        ("serenity", serenity_module, "_EXPANSIONS", 50, "too many partial schedules to compare all; .* beam search"),
    ],
)
def test_what_a_method_could_not_do_is_said(
    monkeypatch: pytest.MonkeyPatch, planner: str, module: ModuleType, limit: str, most: int, shortfall: str
) -> None:
    """A solver out of time, or a method out of its depth: the plan has a note, and so has the refusal of a plan."""
    monkeypatch.setattr(module, limit, most)
    if planner == "olla":
        monkeypatch.setattr(orders_module, "_BEAM_WIDTH", 1)  # so that the programme is asked
    problem = replace(problem_of(irregular(seed=1, ops=80), 1), solver_seconds=1e-3)
    with pytest.raises(Infeasible, match=rf"the order alone \({shortfall}\)") as refusal:
        planned(problem, planner)
    plan = planned(replace(problem, budget=Budget(refusal.value.floor_bytes)), planner).plan
    assert plan.predicted.peak_bytes <= refusal.value.floor_bytes < plan.in_core.peak_bytes
    (note,) = plan.notes
    assert re.fullmatch(f"{planner.upper()}: {shortfall}", note)
