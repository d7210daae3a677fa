"""What is a command told, and what is a plan about? A job as `outgrow.cli` parsed it; a workload and a machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from outgrow.frontends.preparing.ahead import Ahead, KnownMachine, known_machine, look_ahead
from outgrow.frontends.preparing.load import load_remark
from outgrow.frontends.preparing.settings import remark_beyond_memory
from outgrow.frontends.preparing.warmup import warm_up
from outgrow.frontends.user.training.devices import CPU
from outgrow.frontends.workloads.loading import load_workload_function
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.machine import Machine
from outgrow.report.chrome_trace import chrome_trace
from outgrow.report.findings import Findings
from outgrow.report.output import write_atomically
from outgrow.report.page import render_page
from outgrow.report.progress import Narrator
from outgrow.runtime.device import Cuda
from outgrow.runtime.freeing import settled_bytes
from outgrow.runtime.process import machine_bytes


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go besides the terminal; None: nowhere."""

    json: Path | None = None
    report: Path | None = None
    trace: Path | None = None

    def write(self, found: Findings) -> None:
        """Write what was found to each file that is asked for."""
        if self.json is not None:
            write_atomically(self.json, f"{found.to_json()}\n")
        if self.report is not None:
            write_atomically(self.report, render_page(found))
        if self.trace is not None:
            write_atomically(self.trace, chrome_trace(found.traces.measured or found.traces.simulated))


@dataclass(frozen=True, slots=True)
class Job:
    """What a command is told: a workload and its settings, the budget (None: none is named), and how to keep it."""

    workload: str
    settings: Mapping[str, object]
    budget_bytes: int | None
    planner: str
    kernels: str
    machine: Machine | None
    offload_dir: Path | None
    disk_budget_bytes: int | None
    steps: int
    solver_seconds: float
    outputs: Outputs

    @property
    def limit_bytes(self) -> int:
        """The budget, for a command that has to be given one."""
        assert self.budget_bytes is not None, "the parser asks for a budget"
        return self.budget_bytes


@dataclass(frozen=True)
class Prospect:
    """A workload, the machine that it is planned for, and what this process has loaded, if it would be trained here.

    The machine may depend on the home of the model. `remark` is what is to be known of how the machine was measured.
    """

    function: Callable[..., Workload]
    target: KnownMachine | Callable[[torch.device], KnownMachine]
    loaded_bytes: int | None
    remark: str = ""

    @staticmethod
    def of(job: Job) -> "Prospect":
        """Return what a job is about."""
        function = load_workload_function(job.workload)
        if job.machine is not None:
            return Prospect(function, KnownMachine(job.machine), None)
        remark = load_remark()
        baseline_bytes = warm_up(job.kernels)
        target = cache(partial(_at_hand, job))
        return Prospect(function, target, max(0, settled_bytes() - baseline_bytes), remark)

    def tell_remark(self, narrator: Narrator) -> None:
        """Tell, below a result, what is to be known of it."""
        if self.remark:
            narrator.say(f"\n{self.remark}")

    def ahead(self, settings: Mapping[str, object]) -> Ahead:
        """Return the steps with these settings."""
        return look_ahead(self.function, settings, self.target, self.loaded_bytes)


def _at_hand(job: Job, home: torch.device) -> KnownMachine:
    """Return the machine at hand for a model with this home; a budget that it does not have is told."""
    known = known_machine(job.offload_dir, home)
    if job.budget_bytes is not None and home == CPU:
        remark_beyond_memory(job.budget_bytes, machine_bytes())
    elif job.budget_bytes is not None:
        remark_beyond_memory(job.budget_bytes, Cuda(home).memory_bytes, str(home))
    return known
