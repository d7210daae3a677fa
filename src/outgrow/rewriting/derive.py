"""Why is the rewritten graph right? Because it is derived from the captured one by laws, one at a time.

    G0 = captured graph;   G(i+1) = law(decision i) (G(i));   result = G(n)

Decisions in a row that one law carries out are a *stage*, and so are transfers in a row: they stand in the order in
which they come back, whether stowed or swapped. `verify` holds for G0 and after every stage; the capacity of the device
is asked of G(n) alone, since the early graphs do not fit yet. The derivation is data, and prints.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from outgrow.errors import NotApplicable
from outgrow.ir.graph import Graph
from outgrow.ir.stand_ins import Leeway, numbered
from outgrow.ir.text import fingerprint
from outgrow.ir.verify import verify
from outgrow.operators.effects import QUIET
from outgrow.operators.in_place import IN_PLACE
from outgrow.operators.in_turn import in_turn
from outgrow.operators.layouts import layout_only
from outgrow.operators.parts import parts
from outgrow.operators.rows import joined
from outgrow.plan import Decision, Plan, Stow, Swap
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.laws import LAWS

_TRANSFERS = (Stow, Swap)

LEEWAY = Leeway(in_place=IN_PLACE, quiet=QUIET, layouts=layout_only, parts=parts, in_turn=in_turn, joined=joined)
"""What is known of torch's operators."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Decisions in a row that one law carries out, or transfers, and the graph that they make."""

    decisions: tuple[Decision, ...]
    graph: Graph


def derived(captured: Graph, stages: Sequence[Stage]) -> Graph:
    """Return what stages make of a captured graph; none leave it as it is."""
    return stages[-1].graph if stages else captured


@dataclass(frozen=True, slots=True)
class Derivation:
    """The captured graph's fingerprint, every stage of laws applied to it, and the graph at the end."""

    start: str
    stages: tuple[Stage, ...]
    graph: Graph

    def __str__(self) -> str:
        """One line a decision, the fingerprint at the end of each stage."""
        lines = [f"{self.start}  captured"]
        for stage in self.stages:
            at_end = fingerprint(stage.graph)
            prints = [" " * len(at_end)] * (len(stage.decisions) - 1) + [at_end]
            rows = zip(prints, stage.decisions, strict=True)
            lines += [f"{at}  {LAWS[type(decision)].name}  {decision}" for at, decision in rows]
        return "\n".join(lines)


def carry_out(draft: Draft, decision: Decision) -> None:
    """Apply the law of one decision to a draft; raises `NotApplicable`, naming the law, where its condition fails."""
    law = LAWS[type(decision)]
    try:
        law.apply(draft, decision)
    except NotApplicable as refusal:
        raise NotApplicable(f"{law.name} does not apply: {refusal}.") from None


def apply_laws(graph: Graph, decisions: Iterable[Decision]) -> Graph:
    """Return the graph after decisions in their order; raises `NotApplicable` where a law's condition fails."""
    draft = Draft(graph)
    for decision in decisions:
        carry_out(draft, decision)
    return draft.graph()


def carried_out(captured: Graph, decisions: Iterable[Decision]) -> tuple[Stage, ...]:
    """Return the stages of some decisions; raises `NotApplicable` where a law's condition fails."""
    draft = Draft(captured)
    found: list[Stage] = []
    for _, group in groupby(decisions, _kind):
        stage = tuple(group)
        for decision in stage:
            carry_out(draft, decision)
        found.append(Stage(stage, draft.graph()))
    return tuple(found)


def _kind(decision: Decision) -> tuple[type[Decision], ...]:
    """What decisions of one stage have in common: their type, or that they are transfers."""
    return _TRANSFERS if isinstance(decision, _TRANSFERS) else (type(decision),)


def verified(captured: Graph, plan: Plan, stages: Sequence[Stage], workspace: Mapping[str, int]) -> Derivation:
    """Return the derivation of a plan of this graph, whose decisions made these stages.

    Raises `InvalidGraph` where one of them breaks an invariant.
    """
    capacity = plan.budget.capacity_bytes
    verify(captured, capacity_bytes=None if stages else capacity, workspace=workspace)
    reference = numbered(captured, LEEWAY)
    for stage in stages:
        held = capacity if stage is stages[-1] else None
        verify(stage.graph, capacity_bytes=held, workspace=workspace, captured=reference)
    return Derivation(plan.fingerprint, tuple(stages), derived(captured, stages))
