"""What do the commands of `outgrow` do? Load a workload, plan or train it, and write down what was found.

Each takes what `outgrow.cli` parsed and a narrator that tells what happens; what goes wrong is raised.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from time import perf_counter

from torch import Tensor

from outgrow.errors import Infeasible, InvalidPlan
from outgrow.frontends.compile import Step, compile_workload, warm_up
from outgrow.frontends.preparing.ahead import Ahead, look_ahead
from outgrow.frontends.preparing.load import load_remark
from outgrow.frontends.preparing.prepare import KnownMachine, known_machine
from outgrow.frontends.preparing.settings import remark_beyond_memory
from outgrow.frontends.workloads.loading import blamed_on, build, load_workload_function
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.machine import Machine
from outgrow.planning.names import PLANNER_NAMES, SOLVER_SECONDS
from outgrow.report.account import account_of
from outgrow.report.chrome_trace import chrome_trace
from outgrow.report.comparison import Row, comparison
from outgrow.report.findings import Findings, explanation
from outgrow.report.output import write_atomically, write_data
from outgrow.report.page import render_page
from outgrow.report.progress import Narrator, StepLine
from outgrow.report.summary import Traces
from outgrow.runtime.freeing import settled_bytes


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go besides the terminal; None: nowhere."""

    json: Path | None = None
    report: Path | None = None
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What a command is told: a workload and its settings, the budget (0: none is named), and how to keep it."""

    workload: str
    settings: Mapping[str, object]
    budget_bytes: int
    planner: str = "search"
    kernels: str = "eager"
    machine: Machine | None = None
    offload_dir: Path | None = None
    disk_budget_bytes: int | None = None
    steps: int = 1
    solver_seconds: float = SOLVER_SECONDS
    outputs: Outputs = Outputs()


def train(job: Job, narrator: Narrator) -> None:
    """Train for some steps under the budget and tell what was planned and measured."""
    narrator.stage("warm up")
    function = load_workload_function(job.workload)
    baseline_bytes = warm_up(job.kernels)
    narrator.stage("build")
    workload = build(function, job.settings)
    step = compile_workload(
        workload,
        memory_budget=job.budget_bytes,
        offload_dir=job.offload_dir,
        disk_budget=job.disk_budget_bytes,
        planner=job.planner,
        kernels=job.kernels,
        name=job.workload,
        baseline_bytes=baseline_bytes,
        progress=narrator.stage,
    )
    try:
        _take_steps(job, workload, step, narrator)
        account = account_of(step.captured, step.current)
        found = Findings(step.plan, step.current, account, step.derivation, step.derived, step.traces, job.settings)
    finally:
        step.close()
    narrator.say(f"\n{found.figures_text}")
    if workload.evaluate is not None:
        narrator.stage("evaluate")
        with blamed_on("evaluate failed"):
            found = replace(found, scores={name: float(score) for name, score in workload.evaluate().items()})
        narrator.say(f"\n{found.scores_text}")
    _write(job.outputs, found)


def _take_steps(job: Job, workload: Workload, step: Step, narrator: Narrator) -> None:
    for number in range(1, job.steps + 1):
        batch = workload.batches[(number - 1) % len(workload.batches)]
        narrator.stage("step", (number - 1) / job.steps)
        begin, planned = perf_counter(), step.plans.seconds
        try:
            with blamed_on("the step failed"):
                returned = step(*batch)
        except Infeasible as refusal:
            raise refusal.saying(*_aftermath(job, number - 1, makes_state=refusal.makes_state)) from refusal
        seconds, planning = perf_counter() - begin, step.plans.seconds - planned
        loss = float(returned.detach()) if isinstance(returned, Tensor) and returned.numel() == 1 else None
        del returned
        narrator.step(StepLine(number, job.steps, loss, seconds, step.process_bytes, job.budget_bytes, planning))


def _aftermath(job: Job, done: int, *, makes_state: bool) -> list[str]:
    """Return what is to be known beside the refusal of a step, after some that were done."""
    sentences = ["Later steps may need more: `outgrow plan` says how much."] if makes_state else []
    if done:
        written = "" if job.outputs == Outputs() else ", and nothing was written"
        sentences.append(f"{done} of {job.steps} steps were done{written}.")
    return sentences


def plan(job: Job, narrator: Narrator) -> None:
    """Tell what training would take. Nothing is run or allocated."""
    narrator.stage("capture")
    prospect = Prospect.of(job)
    ahead = prospect.ahead(job.settings)
    narrator.stage("plan")
    prepared = ahead.planned(
        job.budget_bytes,
        planner=job.planner,
        progress=narrator.stage,
        solver_seconds=job.solver_seconds,
    )
    found = Findings(
        prepared.summary(job.workload),
        prepared.plan,
        account_of(prepared.graph, prepared.plan),
        str(prepared.derivation),
        prepared.derived,
        Traces(prepared.in_core, prepared.simulated, None),
        job.settings,
    )
    narrator.say(found.figures_text)
    prospect.tell_remark(narrator)
    _write(job.outputs, found)


def compare(job: Job, narrator: Narrator) -> None:
    """Tell what each planner makes of the same step under the same budget; raises `Infeasible` if none has a plan."""
    narrator.stage("capture")
    prospect = Prospect.of(job)
    ahead = prospect.ahead(job.settings)
    rows: list[Row] = []
    bound: float | None = None
    for planner in PLANNER_NAMES:
        narrator.stage(f"planning by {planner}")
        try:
            prepared = ahead.planned(
                job.budget_bytes,
                planner=planner,
                progress=narrator.stage,
                prove=bound is None,
                solver_seconds=job.solver_seconds,
            )
        except Infeasible as refusal:
            rows.append(Row(planner, refusal))
            continue
        bound = prepared.plan.bound_seconds if bound is None else bound  # that of the problem: one for all planners
        rows.append(Row(planner, replace(prepared.summary(job.workload), bound_seconds=bound), prepared.plan.notes))
    narrator.say(comparison(job.workload, job.budget_bytes, rows))
    prospect.tell_remark(narrator)
    write_data(job.outputs.json, [row.to_data() for row in rows])
    refusals = [row.found for row in rows if isinstance(row.found, Infeasible)]
    if len(refusals) == len(rows):
        raise min(refusals, key=attrgetter("floor_bytes"))


def explain(path: Path, narrator: Narrator) -> None:
    """Tell in words what a JSON file of `train` or `plan` says; raises `InvalidPlan` if it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidPlan(
            f"{path} cannot be read: {reason}. Give a file that --json of train or plan wrote."
        ) from error
    try:
        told = explanation(text)
    except InvalidPlan as error:
        raise InvalidPlan(f"{path}: {error} Give a file that --json of train or plan wrote.") from error
    narrator.say(told)


@dataclass(frozen=True)
class Prospect:
    """A workload, the machine that it is planned for, and what this process has loaded, if it would be trained here.

    `remark` is what is to be known of how the machine was measured.
    """

    function: Callable[..., Workload]
    target: KnownMachine
    loaded_bytes: int | None
    remark: str = ""

    @staticmethod
    def of(job: Job) -> "Prospect":
        """Return what a job is about."""
        function = load_workload_function(job.workload)
        if job.machine is not None:
            return Prospect(function, KnownMachine(job.machine), None)
        remark_beyond_memory(job.budget_bytes)
        remark = load_remark()
        baseline_bytes = warm_up(job.kernels)
        target = known_machine(job.offload_dir)
        return Prospect(function, target, max(0, settled_bytes() - baseline_bytes), remark)

    def tell_remark(self, narrator: Narrator) -> None:
        """Tell, below a result, what is to be known of it."""
        if self.remark:
            narrator.say(f"\n{self.remark}")

    def ahead(self, settings: Mapping[str, object]) -> Ahead:
        """Return the steps with these settings."""
        return look_ahead(self.function, settings, self.target, self.loaded_bytes)


def _write(outputs: Outputs, found: Findings) -> None:
    if outputs.json is not None:
        write_atomically(outputs.json, f"{found.to_json()}\n")
    if outputs.report is not None:
        write_atomically(outputs.report, render_page(found))
    if outputs.trace is not None:
        write_atomically(outputs.trace, chrome_trace(found.traces.measured or found.traces.simulated))
