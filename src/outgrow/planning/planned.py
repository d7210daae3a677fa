"""What does a plan make of a graph? The graph after each stage, why that is right, and the step as it will run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

from outgrow.analysis.cost import Cost
from outgrow.analysis.timeline import Lane, Trace
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Machine
from outgrow.operators.stalls import slowdown
from outgrow.plan import Plan
from outgrow.rewriting.derive import Derivation, Stage, derived, verified
from outgrow.simulation import replay


@dataclass(frozen=True)
class Planned:
    """A captured graph with its costs, its plan, the graph after each stage of the plan, and what is expected of it.

    The derivation is still to be verified before the derived graph runs (`require_verified`).
    """

    graph: Graph
    costs: Mapping[str, Cost]
    machine: Machine
    plan: Plan
    stages: tuple[Stage, ...]
    in_core: Trace
    simulated: Trace

    @property
    def derived(self) -> Graph:
        """The rewritten graph that runs."""
        return derived(self.graph, self.stages)

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
