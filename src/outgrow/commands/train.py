"""What does `outgrow train` do? It trains a workload under a budget, and tells what was planned and measured."""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch import Tensor

from outgrow.commands.job import Job, Outputs
from outgrow.errors import Infeasible, InvalidWorkload
from outgrow.frontends.compile import Step, compile_workload
from outgrow.frontends.preparing.warmup import warm_up
from outgrow.frontends.user.unseen.unfinished import is_unfinished
from outgrow.frontends.workloads.loading import blamed_on, built, load_workload_function
from outgrow.frontends.workloads.workload import Workload
from outgrow.report.account import account_of
from outgrow.report.findings import Findings
from outgrow.report.progress import Narrator, StepLine


def train(job: Job, narrator: Narrator) -> None:
    """Train for some steps under the budget and tell what was planned and measured."""
    narrator.stage("warm up")
    function = load_workload_function(job.workload)
    baseline_bytes = warm_up(job.kernels)
    narrator.stage("build")
    workload = built(function, job.settings)
    step = compile_workload(
        workload,
        memory_budget=job.limit_bytes,
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
    try:
        if workload.evaluate is not None:
            narrator.stage("evaluate")
            with blamed_on("evaluate failed"):
                found = replace(found, scores=_named(workload.evaluate()))
            narrator.say(f"\n{found.scores_text}")
    finally:
        job.outputs.write(found)


def _take_steps(job: Job, workload: Workload, step: Step, narrator: Narrator) -> None:
    for number in range(1, job.steps + 1):
        batch = workload.batches[(number - 1) % len(workload.batches)]
        narrator.stage("step", (number - 1) / job.steps)
        begin, planned = perf_counter(), step.plans.seconds
        try:
            with blamed_on("the step failed"):
                returned = step(*batch)
        except Infeasible as refusal:
            raise refusal.saying(*_aftermath(job, number - 1)) from refusal
        seconds, planning = perf_counter() - begin, step.plans.seconds - planned
        loss = float(returned.detach()) if isinstance(returned, Tensor) and returned.numel() == 1 else None
        del returned
        narrator.step(StepLine(number, job.steps, loss, seconds, step.process_bytes, job.limit_bytes, planning))


def _named(scores: object) -> dict[str, float]:
    """Return what a workload's own evaluation has returned, as numbers."""
    if is_unfinished(scores):
        raise InvalidWorkload("evaluate is a generator or a coroutine. Give a function that returns named scores.")
    if not isinstance(scores, Mapping):
        raise InvalidWorkload(
            f"evaluate failed: it returned a {type(scores).__name__}; return a dict of names and scores, such as "
            '{"accuracy": 0.9}.'
        )
    return {str(name): _number(str(name), score) for name, score in scores.items()}


def _number(name: str, score: Any) -> float:
    with blamed_on(f"evaluate failed: its score {name!r} is no number"):
        return float(score)


def _aftermath(job: Job, done: int) -> list[str]:
    """Return what is to be known beside the refusal of a step, after some that were done."""
    written = "" if job.outputs == Outputs() else ", and nothing was written"
    return [f"{done} of {job.steps} steps were done{written}."] if done else []
