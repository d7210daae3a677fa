"""Do table, JSON and explanation say the same of a plan, and all that its decisions do?"""

import json
import math
from dataclasses import replace

import pytest

from outgrow.errors import InvalidPlan
from outgrow.ir.machine import LinkRates
from outgrow.plan import Move, Recompute, Swap
from outgrow.report.account import Account, Recomputed, Reused, Stowed, Swapped
from outgrow.report.findings import explanation
from outgrow.report.page import render_page
from outgrow.report.planfile import plan_from_data
from outgrow.rewriting.laws import LAWS
from outgrow.units import format_bytes, format_seconds
from tests.report.findings import findings


def test_the_account_has_a_row_for_every_decision() -> None:
    """Swaps and recomputations of the plan are all there, with the bytes that the simulation moves."""
    for link in (LinkRates(300.0, 300.0), LinkRates(20.0, 20.0)):
        found = findings(link=link)
        account, decisions = found.account, found.plan.decisions
        rows = (*account.swapped, *account.recomputed, *account.reused, *account.moved)
        assert len(rows) == len(decisions) > 0
        assert len(account.swapped) == sum(isinstance(item, Swap) for item in decisions)
        assert len(account.recomputed) == sum(isinstance(item, Recompute) for item in decisions)
        trace = found.traces.simulated
        assert sum(row.moved_bytes for row in account.swapped) == trace.bytes_in + trace.bytes_out
        assert all(row.size_bytes == 256 and row.role == "activation" for row in account.swapped)


def test_the_json_holds_the_plan_and_numbers_that_json_can_say() -> None:
    """The plan comes back equal; a loss that is not a number is null."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = replace(findings(losses=(1.0, math.nan, math.inf)), scores={"dice": math.nan}, settings={"clip": math.inf})
    data = json.loads(found.to_json(), parse_constant=refuse)
    assert plan_from_data(data["plan"]) == found.plan
    assert data["measured"]["losses"] == [1.0, None, None]
    assert data["scores"] == {"dice": None}
    assert data["settings"] == {"clip": None}


def test_the_explanation_tells_every_storage_and_ends_with_the_table() -> None:
    """What is explained from the file is what was found."""
    found = findings()
    text = explanation(found.to_json())
    assert f"set by {found.plan.floor_op}" in text
    assert all(row.storage in text and row.before in text for row in found.account.swapped)
    assert text.endswith(str(found.summary))
    assert text.count("floor  ") == 1


def test_every_kind_of_decision_is_told_in_text_and_on_the_page() -> None:
    """Whatever a plan does, its names are in the explanation of the file and in a table of the page."""
    account = Account(
        swapped=(Swapped("swapped", "activation", 8, "one", "two", 16),),
        recomputed=(Recomputed("recomputed", "activation", 8, "three"),),
        reused=(Reused("four", "reused", "activation", 8),),
        moved=(Move(("moved", "too"), "five"),),
        apart=("apart",),
        by_layout=("by_layout",),
        stowed=(Stowed("stowed", "parameter", 8, "six", "seven", 16),),
        by_rows=("eight, nine",),
        by_operand=("by_operand",),
    )
    found = replace(findings(), account=account)
    text, page = explanation(found.to_json()), render_page(found)
    assert len(account.sections) == len(LAWS)
    assert all(str(section) in text and section.heading in page for section in account.sections)
    assert all(cell in page for section in account.sections for row in section.rows for cell in row)
    assert all(name in text for name in ("one .. two", "before three", "by four", "after five", "six .. seven"))


def test_a_file_from_before_a_figure_was_told_is_read() -> None:
    """What older files lack has the value that says nothing; what no file lacked is asked for."""
    found = findings()
    data = json.loads(found.to_json())
    del data["bytes_below"], data["ran_as_written"]
    assert explanation(json.dumps(data)).endswith(str(found.summary))
    del data["ops"]
    with pytest.raises(InvalidPlan, match="the file has no 'ops'"):
        explanation(json.dumps(data))


def test_of_a_plan_that_was_not_used_there_are_no_figures() -> None:
    """Where the user's function itself ran, one line says so, and the rest is what it took."""
    found = findings(capacity_bytes=1 << 20)
    summary = replace(found.summary, ran_as_written=True)
    text = explanation(replace(found, summary=summary).to_json())
    assert text == str(summary)
    assert "your function itself was called" in text.splitlines()[0]
    assert not any(word in text for word in ("simulated", "bound", "swapped", "planned by"))
    assert summary.measured is not None
    assert format_seconds(summary.measured.seconds) in text


def test_a_floor_of_the_whole_budget_is_an_upper_limit() -> None:
    """A step that has run under the budget has a plan there, whatever the margin for another process."""
    found = findings().summary
    assert "new process has a plan" in str(found)
    assert "or less: under this budget there is a plan" in str(replace(found, floor_bytes=found.budget_bytes))


def test_the_table_has_every_figure() -> None:
    """Budget, floor, bound and three columns are there; before a step has run, its column is empty."""
    summary = findings().summary
    text = str(summary)
    assert summary.measured is not None
    for size in (
        summary.budget_bytes,
        summary.floor_bytes,
        summary.predicted.peak_bytes,
        summary.bytes_swapped,
        summary.bytes_written,
    ):
        assert format_bytes(size) in text
    for seconds in (summary.bound_seconds, summary.in_core_seconds, summary.measured.seconds):
        assert format_seconds(seconds) in text
    widths = {len(line) for line in text.splitlines()[2:6]}
    assert len(widths) == 1
    assert str(findings(losses=()).summary).count(" -\n") == 2


def test_a_plan_without_decisions_is_explained() -> None:
    """Where the step fits there is nothing to list."""
    assert "Nothing is rewritten" in explanation(findings(capacity_bytes=1 << 20).to_json())
