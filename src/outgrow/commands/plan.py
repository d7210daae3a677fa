"""What do `outgrow plan`, `compare` and `explain` do? They tell what training would take; no step is run.

`plan` asks one planner, `compare` all of them; `explain` tells in words what a file of `plan` or `train` says.
"""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from outgrow.commands.job import Job, Prospect
from outgrow.errors import Infeasible, InvalidPlan
from outgrow.frontends.preparing.ahead import How
from outgrow.planning.names import PLANNER_NAMES
from outgrow.report.account import account_of
from outgrow.report.comparison import Row, comparison
from outgrow.report.fields import text_of
from outgrow.report.findings import Findings, explanation
from outgrow.report.output import write_data
from outgrow.report.progress import Narrator
from outgrow.report.summary import Traces, summary_of


def plan(job: Job, narrator: Narrator) -> None:
    """Tell what training would take. No step of the workload is run, and its model takes no memory."""
    narrator.stage("capture")
    prospect = Prospect.of(job)
    ahead = prospect.ahead(job.settings)
    narrator.stage("plan")
    how = How(job.planner, solver_seconds=job.solver_seconds, progress=narrator.stage)
    planned = ahead.planned(job.limit_bytes, how)
    found = Findings(
        summary_of(planned, job.workload),
        planned.plan,
        account_of(planned.graph, planned.plan),
        str(planned.derivation),
        planned.derived,
        Traces(planned.in_core, planned.simulated, None),
        job.settings,
    )
    narrator.say(found.figures_text)
    prospect.tell_remark(narrator)
    job.outputs.write(found)


def compare(job: Job, narrator: Narrator) -> None:
    """Tell what each planner makes of the same step under the same budget; raises `Infeasible` if none has a plan."""
    narrator.stage("capture")
    prospect = Prospect.of(job)
    ahead = prospect.ahead(job.settings)
    rows: list[Row] = []
    bound: float | None = None
    how = How(solver_seconds=job.solver_seconds, progress=narrator.stage)
    for planner in PLANNER_NAMES:
        narrator.stage(f"planning by {planner}")
        try:
            planned = ahead.planned(job.limit_bytes, replace(how, planner=planner, prove=bound is None))
        except Infeasible as refusal:
            rows.append(Row(planner, refusal))
            continue
        bound = planned.plan.bound_seconds if bound is None else bound  # that of the problem: one for all planners
        rows.append(Row(planner, replace(summary_of(planned, job.workload), bound_seconds=bound), planned.plan.notes))
    narrator.say(comparison(job.workload, job.limit_bytes, rows))
    prospect.tell_remark(narrator)
    write_data(job.outputs.json, [row.to_data() for row in rows])
    refusals = [row.found for row in rows if isinstance(row.found, Infeasible)]
    if len(refusals) == len(rows):
        raise min(refusals, key=attrgetter("floor_bytes"))


def explain(path: Path, narrator: Narrator) -> None:
    """Tell in words what a JSON file of `train` or `plan` says; raises `InvalidPlan` if it is none."""
    remedy = "Give a file that --json of train or plan wrote."
    text = text_of(path, lambda reason: InvalidPlan(f"{path} cannot be read: {reason}. {remedy}"))
    try:
        told = explanation(text)
    except InvalidPlan as error:
        raise InvalidPlan(f"{path}: {error} {remedy}") from error
    narrator.say(told)
