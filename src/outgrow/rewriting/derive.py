"""Why is the rewritten graph right? Because it is derived from the captured one by laws, one at a time.

    G0 = captured graph;   G(i+1) = law(decision i) (G(i));   result = G(n)

`verify` holds for G0 and after every law; the capacity of the device is asked of G(n) alone, since the early
graphs do not fit yet. The derivation is data: it prints, and `replay_derivation` repeats it and compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from outgrow.errors import InvalidPlan, ReplayMismatch
from outgrow.ir.graph import Graph
from outgrow.ir.text import fingerprint
from outgrow.ir.verify import verify
from outgrow.operators.in_place import IN_PLACE
from outgrow.plan import Decision, Plan
from outgrow.rewriting.laws import LAWS


@dataclass(frozen=True, slots=True)
class Derived:
    """One step of a derivation: the law, the decision it carried out, and the fingerprint of what came out."""

    law: str
    decision: Decision
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """The captured graph's fingerprint, every law applied to it, and the graph at the end."""

    start: str
    steps: tuple[Derived, ...]
    graph: Graph

    def __str__(self) -> str:
        """One line a law."""
        lines = [f"{self.start}  captured"]
        lines += [f"{step.fingerprint}  {step.law}  {step.decision}" for step in self.steps]
        return "\n".join(lines)


def apply_law(graph: Graph, decision: Decision) -> Graph:
    """Return the graph after one decision; raises `NotApplicable` where its law's condition fails."""
    return LAWS[type(decision)].apply(graph, decision)


def derive(captured: Graph, plan: Plan, workspace: Mapping[str, int]) -> Derivation:
    """Apply a plan's decisions in order, checking the invariants around each.

    `workspace` gives bytes by captured op name. Raises `InvalidPlan` for a plan of another graph,
    `NotApplicable` where a law's condition fails, `InvalidGraph` where the result breaks an invariant.
    """
    start = fingerprint(captured)
    if plan.fingerprint != start:
        raise InvalidPlan(
            f"The plan was made for graph {plan.fingerprint}, but this graph is {start}. Plan again for this step."
        )
    verify(captured)
    graph = captured
    steps: list[Derived] = []
    for decision in plan.decisions:
        graph = apply_law(graph, decision)
        verify(graph, captured=captured, in_place=IN_PLACE)
        steps.append(Derived(LAWS[type(decision)].name, decision, fingerprint(graph)))
    capacity = plan.budget.capacity_bytes
    verify(graph, captured=captured, in_place=IN_PLACE, capacity_bytes=capacity, workspace=workspace)
    return Derivation(start, tuple(steps), graph)


def replay_derivation(captured: Graph, derivation: Derivation) -> Graph:
    """Repeat a derivation; raises `ReplayMismatch` at the first step that comes out differently."""
    graph = captured
    for number, step in enumerate(derivation.steps):
        graph = apply_law(graph, step.decision)
        found = fingerprint(graph)
        if found != step.fingerprint:
            raise ReplayMismatch(
                f"Step {number} ({step.law}) of the derivation gave graph {found}, recorded was {step.fingerprint}."
            )
    return graph
