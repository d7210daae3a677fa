"""Why is the rewritten graph right? Because it is derived from the captured one by laws, one at a time.

    G0 = captured graph;   G(i+1) = law(decision i) (G(i));   result = G(n)

Decisions in a row that one law carries out are a *stage*. `verify` holds for G0 and after every stage; the capacity of
the device is asked of G(n) alone, since the early graphs do not fit yet. The derivation is data: it prints, and
`replay_derivation` repeats it and compares.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from outgrow.errors import InvalidPlan, ReplayMismatch
from outgrow.ir.graph import Graph
from outgrow.ir.text import fingerprint
from outgrow.ir.verify import verify
from outgrow.operators.effects import QUIET
from outgrow.operators.in_place import IN_PLACE
from outgrow.operators.layouts import layout_only
from outgrow.operators.parts import parts
from outgrow.plan import Decision, Plan
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.laws import LAWS

_NO_WORKSPACE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Derived:
    """One stage of a derivation: the law, the decisions it carried out, and the fingerprint of what came out."""

    law: str
    decisions: tuple[Decision, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """The captured graph's fingerprint, every stage of laws applied to it, and the graph at the end."""

    start: str
    stages: tuple[Derived, ...]
    graph: Graph

    def __str__(self) -> str:
        """One line a decision, the fingerprint at the end of each stage."""
        lines = [f"{self.start}  captured"]
        for stage in self.stages:
            prints = [" " * len(stage.fingerprint)] * (len(stage.decisions) - 1) + [stage.fingerprint]
            lines += [f"{at}  {stage.law}  {decision}" for at, decision in zip(prints, stage.decisions, strict=True)]
        return "\n".join(lines)


def carry_out(draft: Draft, decision: Decision) -> None:
    """Apply the law of one decision to a draft; raises `NotApplicable` where its condition fails."""
    LAWS[type(decision)].apply(draft, decision)


def apply_laws(graph: Graph, decisions: Iterable[Decision]) -> Graph:
    """Return the graph after decisions in their order; raises `NotApplicable` where a law's condition fails."""
    draft = Draft(graph)
    for decision in decisions:
        carry_out(draft, decision)
    return draft.graph()


def _stages(captured: Graph, decisions: Iterable[Decision]) -> Iterator[tuple[str, tuple[Decision, ...], Graph]]:
    """Yield the law and the decisions of each stage, and the graph after it."""
    draft = Draft(captured)
    for kind, group in groupby(decisions, type):
        stage = tuple(group)
        for decision in stage:
            carry_out(draft, decision)
        yield LAWS[kind].name, stage, draft.graph()


def verify_derived(
    graph: Graph, captured: Graph, *, capacity_bytes: int | None = None, workspace: Mapping[str, int] = _NO_WORKSPACE
) -> None:
    """Raise `InvalidGraph` unless `graph` is valid and equivalent to `captured`, given what the operators admit."""
    verify(
        graph,
        captured=captured,
        in_place=IN_PLACE,
        quiet=QUIET,
        layouts=layout_only,
        parts=parts,
        capacity_bytes=capacity_bytes,
        workspace=workspace,
    )


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
    stages: list[Derived] = []
    for law, decisions, graph in _stages(captured, plan.decisions):
        verify_derived(graph, captured)
        stages.append(Derived(law, decisions, fingerprint(graph)))
    capacity = plan.budget.capacity_bytes
    verify_derived(graph, captured, capacity_bytes=capacity, workspace=workspace)
    return Derivation(start, tuple(stages), graph)


def replay_derivation(captured: Graph, derivation: Derivation) -> Graph:
    """Repeat a derivation; raises `ReplayMismatch` at the first step that comes out differently."""
    graph = captured
    decisions = (decision for stage in derivation.stages for decision in stage.decisions)
    for number, (stage, (law, _, graph)) in enumerate(
        zip(derivation.stages, _stages(captured, decisions), strict=True)
    ):
        found = fingerprint(graph)
        if found != stage.fingerprint:
            raise ReplayMismatch(
                f"Stage {number} ({law}) of the derivation gave graph {found}, recorded was {stage.fingerprint}."
            )
    return graph
