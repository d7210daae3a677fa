"""What will a training take, before any of it runs? Its steps are captured without memory, and planned.

The first step makes the state of optimizers and each later one finds it: both have to fit, and what is told is the
plan of the later one. What the process takes beside the tensors of a step is estimated, but for what a look ahead
takes itself: modules that are imported, data that are read, steps as graphs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from outgrow.errors import Infeasible
from outgrow.frontends.preparing.prepare import How, KnownMachine, Prepared, plan_captured, problem_of
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.workloads.steps import capture_steps
from outgrow.frontends.workloads.workload import Workload
from outgrow.planning.order.lean import Orders
from outgrow.planning.pareto import range_of
from outgrow.planning.problem import Problem
from outgrow.runtime.freeing import settled_bytes


@dataclass(frozen=True)
class Ahead:
    """The steps of a training, the machine that they are planned for, and what its process takes beside them."""

    steps: tuple[Captured, ...]
    target: KnownMachine
    taken_bytes: int = 0

    def planned(self, budget_bytes: int, how: How) -> Prepared:
        """Return the plan of the last step; raises `Infeasible`, naming the largest floor, if one does not fit."""
        quickly = [self._tried(step, budget_bytes, How(prove=False, quick=True)) for step in self.steps[:-1]]
        found = [*quickly, self._tried(self.steps[-1], budget_bytes, how)]
        refusals = [item for item in found if isinstance(item, Infeasible)]
        if refusals:
            raise max(refusals, key=attrgetter("floor_bytes"))
        plans = [item for item in found if isinstance(item, Prepared)]
        floor = max(item.plan.floor_bytes for item in plans)
        return replace(plans[-1], plan=replace(plans[-1].plan, floor_bytes=floor))

    def problem(self) -> Problem:
        """Return the problem of planning the last step, without a budget."""
        return problem_of(self.steps[-1], self.target, self.taken_bytes)

    def floor_bytes(self) -> int:
        """Return the smallest budget with which every step has a plan."""
        problems = (problem_of(step, self.target, self.taken_bytes) for step in self.steps)
        return max(range_of(Orders(problem))[0] for problem in problems)

    def _tried(self, step: Captured, budget_bytes: int, how: How) -> Prepared | Infeasible:
        try:
            return plan_captured(step, self.target, budget_bytes, how, self.taken_bytes)
        except Infeasible as refusal:
            return refusal


def look_ahead(
    function: Callable[..., Workload],
    settings: Mapping[str, object],
    target: KnownMachine,
    loaded_bytes: int | None = None,
) -> Ahead:
    """Capture the steps of a workload without memory.

    `loaded_bytes` is what this process takes above its baseline before; None if the training will have another process.
    """
    if loaded_bytes is None:
        return Ahead(capture_steps(function, settings), target)
    before = settled_bytes()
    steps = capture_steps(function, settings)
    return Ahead(steps, target, loaded_bytes + max(0, settled_bytes() - before))
