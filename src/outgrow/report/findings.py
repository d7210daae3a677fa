"""What does a command find out? The figures, the plan with what it does, and the traces: everything that is shown.

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
from outgrow.report.account import Account
from outgrow.report.fields import Fields
from outgrow.report.planfile import parsed, plan_from_data, plan_to_data
from outgrow.report.summary import Summary, Traces, without_nan
from outgrow.units import format_bytes


@dataclass(frozen=True)
class Findings:
    """The figures of a plan, the plan, its account and derivation, the derived graph, and the traces of the step."""

    summary: Summary
    plan: Plan
    account: Account
    derivation: str
    derived: Graph
    traces: Traces
    settings: Mapping[str, object]
    scores: Mapping[str, float] | None = None

    def to_json(self) -> str:
        """Return the JSON object of the command line as text."""
        data = {
            **self.summary.to_data(),
            "settings": without_nan(dict(self.settings)),
            "scores": None if self.scores is None else without_nan(dict(self.scores)),
            "plan": plan_to_data(self.plan),
            "account": asdict(self.account),
            "derivation": self.derivation.splitlines(),
        }
        return json.dumps(data, indent=2, allow_nan=False)

    @property
    def figures_text(self) -> str:
        """The figures as a table, and what the planner wants known of its plan, if it was used."""
        notes = () if self.summary.ran_as_written else self.plan.notes
        return "\n\n".join((str(self.summary), *notes))

    @property
    def scores_text(self) -> str:
        """The scores, one a line."""
        return "\n".join(f"{name} {score:.4g}" for name, score in (self.scores or {}).items())


def explanation(text: str) -> str:
    """Return in words what the JSON of `outgrow train` or `outgrow plan` says.

    Raises `InvalidPlan` where it is damaged.
    """
    fields = Fields(parsed(text, "file"), "the file")
    plan, account = plan_from_data(fields.item("plan")), fields.fields("account").record(Account)
    summary = fields.record(Summary, newer=("bytes_below", "ran_as_written"))
    parts = () if summary.ran_as_written else (_limits(plan), str(account), *plan.notes)
    return "\n\n".join((*parts, str(summary)))


def _limits(plan: Plan) -> str:
    budget, overhead = format_bytes(plan.budget.limit_bytes), format_bytes(plan.budget.overhead_bytes)
    culprit = f" The floor is set by {plan.floor_op}, which needs the most at once." if plan.floor_op else ""
    return f"The budget is {budget}, of which {overhead} are overhead of the process.{culprit}"
