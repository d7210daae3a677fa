"""What is known of a step before it runs? A plan, the graph derived from it, and both traces as simulated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outgrow.analysis.cost import Cost, costs_of
from outgrow.analysis.timeline import Lane, Trace
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Machine
from outgrow.plan import Budget, Estimate, Plan
from outgrow.planning.planner import make_plan
from outgrow.planning.problem import Problem, silent
from outgrow.report.summary import Measured, Summary
from outgrow.rewriting.derive import Derivation, derive
from outgrow.simulation import replay


@dataclass(frozen=True)
class Prepared:
    """A captured graph with its costs, its plan, what is derived from it, and what is expected of it."""

    graph: Graph
    costs: Mapping[str, Cost]
    machine: Machine
    plan: Plan
    derivation: Derivation
    in_core: Trace
    simulated: Trace

    @property
    def derived(self) -> Graph:
        """The rewritten graph that runs."""
        return self.derivation.graph

    @property
    def seconds_recomputed(self) -> float:
        """Seconds of arithmetic that the derived graph repeats."""
        return sum(self.costs[op.captured].seconds for op in self.derived.ops if op.origin)

    def summary(self, workload: str, measured: Measured | None = None, simulated: Trace | None = None) -> Summary:
        """Return the figures of the plan, beside what was measured."""
        replayed = simulated or self.simulated
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
            bytes_swapped=sum(span.size_bytes for span in self.simulated.spans if span.lane is not Lane.COMPUTE),
            seconds_recomputed=self.seconds_recomputed,
            ops=len(self.graph.ops),
            planning_seconds=self.plan.planning_seconds,
        )


def prepare(
    graph: Graph,
    known: Mapping[str, Cost],
    machine: Machine,
    budget: Budget,
    planner: str,
    progress: Callable[[str, float], None] = silent,
) -> Prepared:
    """Plan a captured graph and derive what will run; `known` are measured costs by signature.

    Raises `Infeasible` if the budget is below the floor.
    """
    costs = costs_of(graph, machine.device, known)
    problem = Problem(graph, costs, machine, budget, progress=progress)
    plan = make_plan(problem, planner)
    derivation = derive(graph, plan, problem.workspace)
    in_core, simulated = replay(graph, costs, machine), replay(derivation.graph, costs, machine)
    return Prepared(graph, costs, machine, plan, derivation, in_core, simulated)
