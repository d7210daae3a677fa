"""Does the table of all planners say what each costs, and why one has no plan?"""

from dataclasses import replace

from outgrow.errors import Infeasible
from outgrow.report.comparison import Row, comparison
from tests.report.findings import findings

REFUSAL = Infeasible("olla finds no plan.", floor_bytes=2048, culprit="mm_3", because="it chooses the order alone")
SUMMARY = replace(findings().summary, planner="search", seconds_recomputed=4.0, in_core_seconds=16.0)


def test_a_row_has_every_figure_or_the_reason() -> None:
    """Seconds, how many times those in core, bytes moved, work repeated, planning and distance; or one line why not."""
    told = comparison("toy.py:chain", 1300, [Row("search", SUMMARY, ("a note",)), Row("olla", REFUSAL)])
    lines = told.splitlines()
    assert lines[2].split() == (
        ["planner", "peak", "step", "x", "in", "core", "moved", "recomputed", "planning", "over", "bound"]
    )
    assert f"{SUMMARY.predicted.seconds / 16.0:.3f}" in lines[3]
    assert "4.00 s (25.0%)" in lines[3]
    assert lines[4] == "olla     no plan below 2.0 KiB: it chooses the order alone (mm_3)"
    assert "no plan in the captured order, or in the lean one, is quicker" in told
    assert lines[-1] == "a note"


def test_where_no_planner_has_a_plan_rows_are_brief() -> None:
    """The refusal says why, once, and the rows below which budget."""
    assert comparison("toy.py:chain", 1300, [Row("olla", REFUSAL)]).splitlines()[-1] == "olla     no plan below 2.0 KiB"


def test_the_data_of_a_row_are_those_of_the_table() -> None:
    """Everything that is printed can be read by programs."""
    found = Row("search", SUMMARY, ("a note",)).to_data()
    assert (found["share_recomputed"], found["notes"]) == (0.25, ["a note"])
    assert found["slowdown"] == 1 / SUMMARY.speed
    assert Row("olla", REFUSAL).to_data() == {
        "planner": "olla",
        "infeasible": "olla finds no plan.",
        "needs_bytes": 2048,
        "culprit": "mm_3",
        "because": "it chooses the order alone",
    }
