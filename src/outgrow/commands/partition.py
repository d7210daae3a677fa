"""What does `outgrow partition` do? It says how a step would be divided among workers.

With a machine it also says how long a step takes there. Nothing is run or allocated, except with `--verify`, which runs
each operator of the step in pieces and as a whole.
"""

from collections.abc import Sequence
from time import perf_counter

import torch

from outgrow.commands.job import Job
from outgrow.errors import InvalidMachine, WrongInPieces
from outgrow.frontends.workers.divisible import divisible
from outgrow.frontends.workers.forecast import forecast
from outgrow.frontends.workers.slicing import Checked, checked
from outgrow.frontends.workers.workers import FOR_TENSORS
from outgrow.frontends.workloads.loading import load_workload_function
from outgrow.ir.machine import Machine
from outgrow.planning.partition.partition import partition
from outgrow.report.division import division_of, told
from outgrow.report.output import write_data
from outgrow.report.progress import Narrator

_TOLERANCE = 1e-12


def divide(job: Job, workers: int, narrator: Narrator, *, verify: bool) -> None:
    """Tell what each worker would hold and receive; before it, check the operators of the step in pieces.

    Raises `WrongInPieces` if an operator in pieces does not give what it gives as a whole.
    """
    machine = job.machine
    if machine is not None and machine.devices < workers:
        raise InvalidMachine(_too_few(machine, workers))
    narrator.stage("capture")
    traced = divisible(load_workload_function(job.workload), job.settings)
    step = traced.step
    if verify:
        narrator.stage("verify")
        torch.manual_seed(0)
        checks = list(checked(step, workers))
        narrator.say(_told_checks(checks))
        _require_right(checks)
    narrator.stage("divide")
    begin = perf_counter()
    budget = job.budget_bytes
    memory = None if budget is None else budget * FOR_TENSORS
    found = partition(step, workers, memory_bytes=memory, machine=machine)
    seconds = perf_counter() - begin
    foreseen = None if machine is None else forecast(traced, found, machine, budget, narrator.stage)
    division = division_of(job.workload, step, found, seconds, foreseen)
    narrator.say(told(division, step, found.levels))
    write_data(job.outputs.json, division.to_data())


def _too_few(machine: Machine, workers: int) -> str:
    if not machine.peers:
        return (
            f"{machine.name} describes one device. Give a machine with tables [[peers]] for the links between devices, "
            "such as k80x8."
        )
    return (
        f"{machine.name} has {machine.devices} devices, fewer than {workers} workers. Give --workers {machine.devices}."
    )


def _require_right(checks: Sequence[Checked]) -> None:
    for item in checks:
        if item.error is not None and not item.error <= _TOLERANCE:
            raise WrongInPieces(
                f"{item.operator} in pieces differs from the whole by {item.error}, so its description is wrong. "
                "Please report it; a mesh would give wrong results."
            )


def _told_checks(checks: Sequence[Checked]) -> str:
    """Return how many calls were run in how many ways, the worst difference, and which could not be run."""
    ran = [item for item in checks if item.error is not None]
    worst = max((item.error or 0.0 for item in ran), default=0.0)
    lines = [f"{len(ran)} calls ran in {sum(item.ways for item in ran)} ways; the worst differs by {worst:.0e}."]
    lines += [f"Not run: {item.operator}: {item.because}" for item in checks if item.error is None]
    return "\n".join(dict.fromkeys(lines)) + "\n"
