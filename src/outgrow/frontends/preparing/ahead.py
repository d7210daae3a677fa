"""What will a training take, before any of it runs? Its steps are captured without memory, and planned.

The first step makes the state of optimizers and each later one finds it: both have to fit, and what is told is the
plan of the later one. What the process takes beside the tensors of a step is estimated, but for what a look ahead
takes itself: modules that are imported, data that are read, steps as graphs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

import torch

from outgrow.analysis.cost import Cost, costs_of
from outgrow.errors import Infeasible, InvalidMachine
from outgrow.frontends.preparing.measure import machine_of, open_cost_cache, this_machine
from outgrow.frontends.preparing.overhead import unseen_overhead_bytes, within
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.user.training.devices import CPU
from outgrow.frontends.workloads.steps import capture_steps
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.machine import Machine
from outgrow.plan import UNLIMITED, Budget
from outgrow.planning.names import SOLVER_SECONDS
from outgrow.planning.order.lean import Orders
from outgrow.planning.pareto import range_of
from outgrow.planning.planned import Planned
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem, silent
from outgrow.runtime.device import Cuda
from outgrow.runtime.freeing import least_bytes as heap_least_bytes
from outgrow.runtime.freeing import settled_bytes
from outgrow.runtime.tiers import offload_folder


@dataclass(frozen=True)
class KnownMachine:
    """A machine, and what is known of the costs of ops on it."""

    machine: Machine
    costs: Mapping[str, Cost] = field(default_factory=dict)


def known_machine(offload_dir: Path | None = None, home: torch.device = CPU) -> KnownMachine:
    """Return this machine, with a model's home as its device, with measured rates, and what was observed on it.

    Raises `InvalidMachine` where the home of the model is no device of this machine.
    """
    if home == CPU:
        return KnownMachine(this_machine(offload_folder(offload_dir)), open_cost_cache().known)
    if not torch.cuda.is_available():
        raise InvalidMachine(f"The model is on {home}, and torch finds no GPU here. Name a machine to plan for.")
    device = Cuda(home)
    return KnownMachine(machine_of(device), open_cost_cache(device.name).known)


def problem_of(captured: Captured, target: KnownMachine, taken_bytes: int = 0) -> Problem:
    """Return the problem of planning a captured step that has not run yet, without a budget.

    The process takes `taken_bytes` for other things.
    """
    graph = captured.graph
    return Problem(
        graph,
        costs_of(graph, target.machine.device, target.costs),
        target.machine,
        Budget(UNLIMITED, _overhead_bytes(captured, taken_bytes, UNLIMITED)),
        least_bytes=heap_least_bytes(),
    )


def _overhead_bytes(captured: Captured, taken_bytes: int, limit_bytes: int) -> int:
    is_of_gpu = captured.device != CPU
    unseen_bytes = Cuda.unseen_bytes if is_of_gpu else unseen_overhead_bytes(captured.graph, limit_bytes)
    return taken_bytes + captured.copied_bytes + unseen_bytes


@dataclass(frozen=True)
class How:
    """How a step is planned: by which planner, with a proof of how near the plan is to the best one, or quickly."""

    planner: str = "search"
    prove: bool = True
    quick: bool = False
    solver_seconds: float = SOLVER_SECONDS
    progress: Callable[[str, float], None] = silent


def plan_captured(
    captured: Captured, target: KnownMachine, budget_bytes: int, how: How, taken_bytes: int = 0
) -> Planned:
    """Plan a captured step before it has run, in a process that takes `taken_bytes` for other things.

    Raises `Infeasible` if the budget is below the floor.
    """
    problem = replace(
        problem_of(captured, target, taken_bytes),
        quick=how.quick,
        solver_seconds=how.solver_seconds,
        progress=how.progress,
    )
    found = within(
        budget_bytes,
        lambda limit: _overhead_bytes(captured, taken_bytes, limit),
        lambda budget: planned(replace(problem, budget=budget), how.planner, prove=how.prove),
    )
    found.require_verified()
    return found


@dataclass(frozen=True)
class Ahead:
    """The steps of a training, the machine that they are planned for, and what its process takes beside them."""

    steps: tuple[Captured, ...]
    target: KnownMachine
    taken_bytes: int = 0

    def planned(self, budget_bytes: int, how: How) -> Planned:
        """Return the plan of the last step; raises `Infeasible`, naming the largest floor, if one does not fit."""
        quickly = [self._tried(step, budget_bytes, How(prove=False, quick=True)) for step in self.steps[:-1]]
        found = [*quickly, self._tried(self.steps[-1], budget_bytes, how)]
        refusals = [item for item in found if isinstance(item, Infeasible)]
        if refusals:
            raise max(refusals, key=attrgetter("floor_bytes"))
        plans = [item for item in found if isinstance(item, Planned)]
        floor = max(item.plan.floor_bytes for item in plans)
        return replace(plans[-1], plan=replace(plans[-1].plan, floor_bytes=floor))

    def problem(self) -> Problem:
        """Return the problem of planning the last step, without a budget."""
        return problem_of(self.steps[-1], self.target, self.taken_bytes)

    def floor_bytes(self) -> int:
        """Return the smallest budget with which every step has a plan."""
        problems = (problem_of(step, self.target, self.taken_bytes) for step in self.steps)
        return max(range_of(Orders(problem))[0] for problem in problems)

    def _tried(self, step: Captured, budget_bytes: int, how: How) -> Planned | Infeasible:
        try:
            return plan_captured(step, self.target, budget_bytes, how, self.taken_bytes)
        except Infeasible as refusal:
            return refusal


def look_ahead(
    function: Callable[..., Workload],
    settings: Mapping[str, object],
    target: KnownMachine | Callable[[torch.device], KnownMachine],
    loaded_bytes: int | None = None,
) -> Ahead:
    """Capture the steps of a workload without memory.

    A target may depend on the home of the model. `loaded_bytes` is what this process takes above its baseline before,
    of memory of the host; None if the training will have another process.
    """
    before = settled_bytes() if loaded_bytes is not None else 0
    steps = capture_steps(function, settings)
    home, taken_bytes = steps[0].device, 0
    if loaded_bytes is not None and home == CPU:
        taken_bytes = loaded_bytes + max(0, settled_bytes() - before)
    return Ahead(steps, target if isinstance(target, KnownMachine) else target(home), taken_bytes)
