"""Does the table of plans say what they are and cost?"""

from outgrow.report.plans import PlanReport, PlansReport


def test_one_line_a_plan_and_the_sum() -> None:
    """Shapes, calls and seconds; how many were forgotten."""
    planned = PlanReport(((8, 3), ()), 40, runs_as_written=False, calls=7, seconds=2.0)
    fits = PlanReport((), 12, runs_as_written=True, calls=1, seconds=1.0)
    report = PlansReport((planned, fits), forgotten=3)
    lines = str(report).splitlines()
    assert lines[0].split() == ["batch", "ops", "runs", "calls", "made", "in"]
    assert "8x3, scalar" in lines[1]
    assert "planned" in lines[1]
    assert lines[2].startswith("none")
    assert "as written" in lines[2]
    assert lines[-1].startswith("2 plans, made in 3.0")
    assert "3 forgotten" in lines[-1]


def test_without_a_call_there_is_none() -> None:
    """The table is short then."""
    assert "0 plans" in str(PlansReport(()))
