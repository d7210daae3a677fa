"""What does a command find out? The figures, the plan with what it does, and the traces: everything that is
shown.

The JSON object of the command line is the summary's, with these keys besides:

    "settings"    what the workload was called with
    "scores"      what its `evaluate` returned after training, or null
    "plan"        the plan as `report.planfile` writes it
    "account"     what the plan does to each storage (`report.account`)
    "derivation"  every law that was applied, one line each
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from outgrow.ir.graph import Graph
from outgrow.plan import Plan
from outgrow.report.account import Account, Moved, Recomputed, Reused, Stowed, Swapped
from outgrow.report.fields import Fields
from outgrow.report.planfile import estimate, parsed, plan_from_data, plan_to_data
from outgrow.report.summary import Measured, Summary, Traces, without_nan
from outgrow.units import format_bytes


@dataclass(frozen=True)
class Findings:
    """The figures of a plan, the plan, its account and derivation, the derived graph, and the traces of the
    step.
    """

    summary: Summary
    plan: Plan
    account: Account
    derivation: str
    derived: Graph
    traces: Traces
    settings: Mapping[str, object]
    scores: Mapping[str, float] | None = None

    def to_data(self) -> dict[str, object]:
        """Return the JSON object of the command line."""
        return {
            **json.loads(self.summary.to_json()),
            "settings": dict(self.settings),
            "scores": None if self.scores is None else without_nan(dict(self.scores)),
            "plan": plan_to_data(self.plan),
            "account": asdict(self.account),
            "derivation": self.derivation.splitlines(),
        }

    @property
    def figures_text(self) -> str:
        """The figures as a table, and what the planner wants known of its plan, if it was used."""
        notes = () if self.summary.ran_as_written else self.plan.notes
        return "\n\n".join((str(self.summary), *notes))

    @property
    def scores_text(self) -> str:
        """The scores, one a line."""
        return "\n".join(f"{name} {score:.4g}" for name, score in (self.scores or {}).items())

    def to_json(self) -> str:
        """Return the JSON object of the command line as text."""
        return json.dumps(self.to_data(), indent=2, allow_nan=False)


def explanation(text: str) -> str:
    """Return in words what the JSON of `outgrow train` or `outgrow plan` says.

    Raises `InvalidPlan` where it is damaged.
    """
    fields = Fields(parsed(text, "file"), "the file")
    plan = plan_from_data(fields.item("plan"))
    account = fields.fields("account")
    found = Account(
        account.each("swapped", _swapped),
        account.each("recomputed", _recomputed),
        account.each("reused", _reused),
        account.each("moved", lambda row: Moved(row.texts("ops"), row.text("after"))),
        account.texts("apart"),
        account.texts("by_layout"),
        account.each("stowed", _stowed),
    )
    summary = _summary(fields)
    parts = () if summary.ran_as_written else (_limits(plan), str(found), *plan.notes)
    return "\n\n".join((*parts, str(summary)))


def _limits(plan: Plan) -> str:
    budget, overhead = format_bytes(plan.budget.limit_bytes), format_bytes(plan.budget.overhead_bytes)
    culprit = f" The floor is set by {plan.floor_op}, which needs the most at once." if plan.floor_op else ""
    return f"The budget is {budget}, of which {overhead} are overhead of the process.{culprit}"


def _summary(fields: Fields) -> Summary:
    return Summary(
        workload=fields.text("workload"),
        machine=fields.text("machine"),
        planner=fields.text("planner"),
        budget_bytes=fields.integer("budget_bytes"),
        floor_bytes=fields.integer("floor_bytes"),
        in_core_peak_bytes=fields.integer("in_core_peak_bytes"),
        bound_seconds=fields.number("bound_seconds"),
        in_core_seconds=fields.number("in_core_seconds"),
        predicted=estimate(fields.fields("predicted")),
        simulated=estimate(fields.fields("simulated")),
        measured=None if fields.item("measured") is None else _measured(fields.fields("measured")),
        overhead_bytes=fields.integer("overhead_bytes"),
        bytes_swapped=fields.integer("bytes_swapped"),
        bytes_written=fields.integer("bytes_written"),
        seconds_recomputed=fields.number("seconds_recomputed"),
        ops=fields.integer("ops"),
        planning_seconds=fields.number("planning_seconds"),
        bytes_below=fields.newer_integer("bytes_below"),
        ran_as_written=fields.newer_flag("ran_as_written"),
    )


def _measured(fields: Fields) -> Measured:
    peak, process, seconds = (
        fields.integer("peak_bytes"),
        fields.integer("process_bytes"),
        fields.number("seconds"),
    )
    return Measured(peak, process, seconds, fields.numbers("losses"))


def _swapped(row: Fields) -> Swapped:
    return Swapped(
        row.text("storage"),
        row.text("role"),
        row.integer("size_bytes"),
        row.text("after"),
        row.text("before"),
        row.integer("moved_bytes"),
    )


def _stowed(row: Fields) -> Stowed:
    return Stowed(
        row.text("storage"),
        row.text("role"),
        row.integer("size_bytes"),
        row.text("first"),
        row.text("last"),
        row.integer("moved_bytes"),
    )


def _recomputed(row: Fields) -> Recomputed:
    return Recomputed(row.text("storage"), row.text("role"), row.integer("size_bytes"), row.text("before"))


def _reused(row: Fields) -> Reused:
    return Reused(row.text("op"), row.text("storage"), row.text("role"), row.integer("size_bytes"))
