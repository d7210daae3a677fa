"""What is known of a step before it runs? A plan, the graph derived from it, and both traces as simulated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import mean

from outgrow.analysis.cost import Cost, costs_of
from outgrow.analysis.liveness import peak_bytes
from outgrow.analysis.sinking import sunk
from outgrow.analysis.timeline import Lane, Trace
from outgrow.errors import Infeasible
from outgrow.frontends.preparing.measure import open_cost_cache, this_machine
from outgrow.frontends.tracing.captured import Captured
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Machine
from outgrow.operators.arithmetic import PRODUCTS, value_bytes
from outgrow.operators.stalls import slowdown
from outgrow.plan import UNLIMITED, Budget, Estimate, Plan
from outgrow.planning.names import SOLVER_SECONDS
from outgrow.planning.planner import Planned, planned
from outgrow.planning.problem import Problem, silent
from outgrow.report.summary import Measured, Summary
from outgrow.rewriting.derive import Derivation, Stage, verified
from outgrow.runtime.freeing import least_bytes as heap_least_bytes
from outgrow.runtime.tiers import offload_folder
from outgrow.simulation import replay

_UNSEEN_SHARE = 0.01
_UNSEEN_BYTES = 24 << 20
_HEAP_SHARE = 0.75
_PACKED_BYTES = 32 << 20
"""What the library of matrix products keeps for parts of an operand, at most."""


@dataclass(frozen=True)
class Prepared:
    """A captured graph with its costs, its plan, the graph after each stage of the plan, and what is expected of it."""

    graph: Graph
    costs: Mapping[str, Cost]
    machine: Machine
    plan: Plan
    stages: tuple[Stage, ...]
    in_core: Trace
    simulated: Trace

    @staticmethod
    def of(problem: Problem, found: Planned) -> "Prepared":
        """Return what was planned for a problem, which is still to be verified before it runs (`require_verified`)."""
        return Prepared(
            problem.graph, problem.costs, problem.machine, found.plan, found.stages, found.in_core, found.simulated
        )

    @property
    def derived(self) -> Graph:
        """The rewritten graph that runs."""
        return self.stages[-1].graph if self.stages else self.graph

    @cached_property
    def derivation(self) -> Derivation:
        """The derivation, verified. Raises `InvalidGraph` where a stage breaks an invariant."""
        workspace = {name: cost.workspace_bytes for name, cost in self.costs.items()}
        return verified(self.graph, self.plan, self.stages, workspace)

    def require_verified(self) -> None:
        """Raise `InvalidGraph` where a stage breaks an invariant: whatever runs has to pass."""
        _ = self.derivation

    @property
    def seconds_recomputed(self) -> float:
        """Seconds of arithmetic that the derived graph repeats."""
        return sum((self.costs[op.captured].seconds for op in self.derived.ops if op.origin), 0.0)

    def costs_in(self, measured: Trace) -> dict[str, Cost]:
        """Return the costs of the captured ops that ran, with the seconds that they took; means, where they repeat."""
        ops, values = {op.name: op for op in self.derived.ops}, self.derived.values
        seen: dict[str, list[float]] = {}
        for span in measured.spans:
            if span.lane is Lane.COMPUTE and span.label in ops:
                op = ops[span.label]
                seen.setdefault(op.captured, []).append((span.end - span.begin) / slowdown(values, op))
        return {name: replace(self.costs[name], seconds=mean(own)) for name, own in seen.items() if name in self.costs}

    def replayed(self, measured: Trace) -> Trace:
        """Return the derived graph's step as simulated with the seconds that its ops took in a run."""
        seen = self.costs_in(measured)
        return replay(self.derived, {**self.costs, **seen}, self.machine) if seen else self.simulated

    def summary(self, workload: str, measured: Measured | None = None, simulated: Trace | None = None) -> Summary:
        """Return the figures of the plan, beside what was measured."""
        replayed, below = simulated or self.simulated, sunk(self.derived, self.machine)
        return Summary(
            workload=workload,
            machine=self.machine.name,
            planner=self.plan.planner,
            budget_bytes=self.plan.budget.limit_bytes,
            floor_bytes=self.plan.floor_bytes,
            in_core_peak_bytes=self.plan.in_core.peak_bytes,
            bound_seconds=self.plan.bound_seconds,
            in_core_seconds=self.plan.in_core.seconds,
            predicted=self.plan.predicted,
            simulated=Estimate(replayed.peak_bytes, replayed.seconds),
            measured=measured,
            overhead_bytes=self.plan.budget.overhead_bytes,
            bytes_swapped=self.simulated.bytes_in + self.simulated.bytes_out,
            bytes_written=self.simulated.bytes_out,
            seconds_recomputed=self.seconds_recomputed,
            ops=len(self.graph.ops),
            planning_seconds=self.plan.planning_seconds,
            bytes_below=sum(span.size_bytes for span in self.simulated.spans if span.label in below),
        )


def unseen_overhead_bytes(graph: Graph, budget_bytes: int) -> int:
    """Return what a process is expected to take beyond the timeline's peak, before a run has shown it.

    A share of what the step will hold, a larger share of what it holds in small tensors, which leave holes in the
    heap, what the library keeps of the operands of matrix products, and a constant.
    """
    least = heap_least_bytes()
    small = {name: storage for name, storage in graph.storages.items() if storage.size_bytes < least}
    large = {name: replace(storage, size_bytes=0) for name, storage in graph.storages.items() if name not in small}
    held = min(budget_bytes, peak_bytes(graph, {}))
    in_heap = min(held, peak_bytes(replace(graph, storages={**small, **large}), {}))
    factors = [graph.values[name] for op in graph.ops if op.operator in PRODUCTS for name in op.operands]
    packed = min(_PACKED_BYTES, max(map(value_bytes, factors), default=0))
    return int(held * _UNSEEN_SHARE + in_heap * _HEAP_SHARE) + packed + _UNSEEN_BYTES


@dataclass(frozen=True)
class KnownMachine:
    """A machine, and what is known of the costs of ops on it."""

    machine: Machine
    costs: Mapping[str, Cost] = field(default_factory=dict)


def known_machine(offload_dir: Path | None = None) -> KnownMachine:
    """Return this machine with measured rates, and the costs that were observed on it."""
    return KnownMachine(this_machine(offload_folder(offload_dir)), open_cost_cache().known)


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
    return taken_bytes + captured.copied_bytes + unseen_overhead_bytes(captured.graph, limit_bytes)


def within(limit_bytes: int, overhead_within: Callable[[int], int], found: Callable[[Budget], Planned]) -> Planned:
    """Return what is planned for what the overhead leaves of a budget.

    A larger budget may have more overhead, so the floor that `Infeasible` names includes the overhead at that floor.
    """
    overhead = overhead_within(limit_bytes)
    while True:
        try:
            return found(Budget(limit_bytes, overhead))
        except Infeasible as refusal:
            before, overhead = overhead, overhead_within(refusal.floor_bytes)
            if overhead <= before:
                raise


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
) -> Prepared:
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
    prepared = Prepared.of(problem, found)
    prepared.require_verified()
    return prepared
