"""What is planned in simulation? A workload of `benchmarks/workloads` on a described machine, under a budget.

Speeds are seconds of the captured step in core over seconds of a plan, both by the machine's cost model; the bound is
that of `planning.bound`. Every planner gets the same problem: ours and the bound get `PATIENCE_SECONDS` to solve it,
published planners `RIVAL_SECONDS` each.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from patience import within
from rows import GB, spelled, workload_function

from outgrow.errors import Infeasible
from outgrow.frontends.preparing.ahead import KnownMachine, problem_of
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.workloads.steps import capture_workload
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.plan import UNLIMITED, Budget, Plan
from outgrow.planning.names import PLANNER_NAMES
from outgrow.planning.order.lean import Orders, least_seconds
from outgrow.planning.planner import planned, with_a_plan
from outgrow.planning.problem import Problem

VARIABLES = 40_000
"""Of the programme that proves the bound: twice as many as a user waits for."""
PATIENCE_SECONDS = 300.0
RIVAL_SECONDS = 120.0
OURS = "search"
PUBLISHED = tuple(name for name in PLANNER_NAMES if name != OURS)

_V100 = described_machine("v100-pcie3")
_V100_NVLINK = described_machine("v100-nvlink2")
_MIXED = replace(_V100.device, name="NVIDIA V100, mixed precision", flops_per_second=2.5e13)
"""The flop/s are fitted, 20 % of the peak of the tensor cores: a ResNet-50 then trains at the 722 images/s a GPU that
NVIDIA measured on four V100 (DeepLearningExamples, RN50v1.5 for PyTorch, June 2019)."""

MACHINES: Mapping[str, Machine] = {
    "first study": Machine(
        "8.4 TFLOP/s, 800 GB/s, 12 GB/s",
        Device("of the first study", 8.4e12, 8e11, needs_workspace=False),
        LinkRates(12e9, 12e9),
    ),
    "v100-pcie3, mixed": replace(_V100, device=_MIXED),
    "v100-nvlink2, mixed": replace(_V100_NVLINK, device=_MIXED),
}
"""Machines that no file describes: that of the project's first study of this question, and V100s in mixed precision."""


@dataclass(frozen=True)
class Cell:
    """A workload (file:function) with its settings, and the machine on which it is planned."""

    workload: str
    settings: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)
    machine: str = "v100-pcie3"

    @property
    def title(self) -> str:
        """The workload's name and settings."""
        return f"{self.workload.partition(':')[2]} {spelled(self.settings)}".strip()


@dataclass(frozen=True)
class Outcome:
    """What a planner made of a problem; without `speed`, `refusal` says why there is no plan."""

    speed: float | None = None
    peak_bytes: int | None = None
    planning_seconds: float | None = None
    refusal: str = ""


def machine_of(cell: Cell) -> Machine:
    """Return the machine of a cell; raises `InvalidQuantity` for one that nothing describes."""
    return MACHINES.get(cell.machine) or described_machine(cell.machine)


def problem_for(cell: Cell, budget_bytes: int = UNLIMITED) -> Problem:
    """Capture the workload of a cell and return its problem under a budget."""
    return replace(_captured(cell), budget=Budget(budget_bytes))


@functools.lru_cache(maxsize=1)
def _captured(cell: Cell) -> Problem:
    """Neighbours in a table are often one step under several budgets."""
    return problem_of(capture_workload(workload_function(cell.workload), cell.settings), KnownMachine(machine_of(cell)))


def ours(problem: Problem) -> Outcome:
    """Return what our planner makes of a problem, or that it takes too long."""
    return within(PATIENCE_SECONDS, _planned, problem, OURS) or _too_long(PATIENCE_SECONDS)


def theirs(problem: Problem, planner: str) -> Outcome:
    """Return what a published planner makes of a problem, or that it takes too long."""
    return within(RIVAL_SECONDS, _planned, problem, planner) or _too_long(RIVAL_SECONDS)


def _too_long(seconds: float) -> Outcome:
    return Outcome(refusal=f"no plan in {seconds:.0f} s")


def _planned(problem: Problem, planner: str) -> Outcome:
    try:
        plan = planned(problem, planner, prove=False).plan
    except Infeasible as refusal:
        return Outcome(refusal=str(refusal))
    return Outcome(speed_of(plan), plan.predicted.peak_bytes, plan.planning_seconds)


def bound_speed(problem: Problem, in_core_seconds: float) -> float | None:
    """Return the speed that no plan beats; None if that takes too long to prove."""
    seconds = within(PATIENCE_SECONDS, _least_seconds, problem)
    return in_core_seconds / seconds if seconds else None


def _least_seconds(problem: Problem) -> float:
    """Return seconds that no plan beats, which moves what ours may move."""
    return least_seconds(as_searched(problem)[0], Orders(problem), VARIABLES)


def as_searched(problem: Problem) -> tuple[Problem, Graph]:
    """Return the problem that our planner solves, with what it may move, and its graph after all free rewrites."""
    found, freed = with_a_plan(problem, Orders(problem), may_rest=True)
    return found, freed.graph


def speed_of(plan: Plan) -> float:
    """Return the seconds in core over those of a plan."""
    return plan.in_core.seconds / plan.predicted.seconds


def gigabytes(size: float) -> int:
    """Return a size in units of 10^9 bytes, as papers give the memory of devices."""
    return int(size * GB)
