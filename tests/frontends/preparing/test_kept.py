"""Are plans of an earlier job found again, and only where they are still good?"""

from dataclasses import replace
from pathlib import Path

import pytest

from outgrow.analysis.cost import Cost
from outgrow.frontends.preparing import kept
from outgrow.frontends.preparing.kept import planned_or_kept, serves
from outgrow.ir.text import fingerprint
from outgrow.plan import Budget, Piece, Plan, Stow, Swap
from outgrow.planning.order.lean import Orders
from outgrow.planning.planner import Planned
from outgrow.planning.problem import Problem
from tests.report.findings import MACHINE, chain

CAPACITY = 1300
Searched = list[int]


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searched:
    """The capacities that were planned for anew; nothing is kept before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found: Searched = []
    original = kept.planned

    def noted(
        problem: Problem, planner: str, *, prove: bool, earlier: Plan | None = None, orders: Orders | None = None
    ) -> Planned:
        if earlier is None:
            found.append(problem.budget.capacity_bytes)
        return original(problem, planner, prove=prove, earlier=earlier, orders=orders)

    monkeypatch.setattr(kept, "planned", noted)
    return found


def problem(capacity: int = CAPACITY, seconds: float = 1.0, length: int = 8) -> Problem:
    """A chain on a slow link."""
    graph = chain(length)
    costs = {op.name: Cost(seconds) for op in graph.ops}
    return Problem(graph, costs, MACHINE, Budget(capacity), minimum_bytes=4, piece_bytes=128)


def plan(asked: Problem, planner: str = "search") -> Plan:
    """The plan, made or found."""
    return planned_or_kept(asked, planner, Orders(asked)).plan


def test_a_plan_is_made_once(searched: Searched) -> None:
    """The second job has the decisions of the first, and the same prediction."""
    first, second = plan(problem()), plan(problem())
    assert searched == [CAPACITY]
    assert first.decisions == second.decisions != ()
    assert first.predicted == second.predicted


@pytest.mark.parametrize(
    "other",
    [
        problem(capacity=CAPACITY - 260),
        problem(capacity=CAPACITY + 260),
        problem(seconds=2.0),
        problem(length=9),
        replace(problem(), machine=replace(MACHINE, name="another")),
    ],
    ids=["less room", "more room", "other costs", "another graph", "another machine"],
)
def test_another_problem_is_planned_anew(other: Problem, searched: Searched) -> None:
    """A plan that would not fit, or that could be better, is not taken."""
    plan(problem())
    found = plan(other)
    assert len(searched) == 2
    assert found.predicted.peak_bytes <= other.budget.capacity_bytes
    plan(other)
    plan(problem())
    assert len(searched) == 2, "both are kept"


def test_another_planner_has_its_own(searched: Searched) -> None:
    """Plans of a paper's planner are not taken for ours."""
    plan(problem())
    plan(problem(), "nnabla_window")
    assert len(searched) == 2


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"version": 1, "decisions": [{"kind": "Swop"}]}'])
def test_a_damaged_file_is_written_anew(text: str, searched: Searched, tmp_path: Path) -> None:
    """It is a cache."""
    plan(problem())
    (file,) = tmp_path.rglob("plans/*.jsonl")
    file.write_text(text)
    plan(problem())
    plan(problem())
    assert len(searched) == 2


def test_a_plan_of_another_graph_is_not_taken(searched: Searched, tmp_path: Path) -> None:
    """Though its names are there and its decisions fit, it was made for something else."""
    plan(problem())
    (file,) = tmp_path.rglob("plans/*.jsonl")
    file.write_text(file.read_text().replace(fingerprint(problem().graph), "0123"))
    plan(problem())
    assert len(searched) == 2


def test_the_number_of_files_is_bounded(searched: Searched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go."""
    monkeypatch.setattr(kept, "_MOST_FILES", 2)
    for length in (6, 7, 8, 9):
        plan(problem(length=length))
    assert len(searched) == 4
    assert len(list(tmp_path.rglob("plans/*.jsonl"))) == 2


def test_what_may_not_be_moved_now_is_not(searched: Searched) -> None:
    """A plan that moves a weight, within the step or between steps, does not serve where the weight has to stay."""
    stowing = replace(plan(problem()), decisions=(Stow("x", (), None, None, None),))
    assert serves(stowing, problem())
    assert not serves(stowing, replace(problem(), fixed=frozenset({"x"})))
    swapping = replace(stowing, decisions=(Swap("x", None, "exp", (Piece(0, 4, "exp"),), "exp"),))
    assert serves(swapping, problem())
    assert not serves(swapping, replace(problem(), fixed=frozenset({"x"})))
    assert len(searched) == 1
