"""Which of many decisions do the laws admit? Each is tried on what those before it have made."""

from collections.abc import Iterable
from typing import TypeVar

from outgrow.errors import NotApplicable
from outgrow.ir.graph import Graph
from outgrow.plan import Decision
from outgrow.rewriting.derive import carry_out
from outgrow.rewriting.draft import Draft

D = TypeVar("D", bound=Decision)


def admitted(graph: Graph, choices: Iterable[Iterable[D]]) -> tuple[Graph, tuple[D, ...]]:
    """Return the graph after the first decision of each choice that its law admits, and these decisions, in order."""
    draft: Draft | None = None
    made: list[D] = []
    for choice in choices:
        for decision in choice:
            draft = draft or Draft(graph)
            try:
                carry_out(draft, decision)
            except NotApplicable:
                continue
            made.append(decision)
            break
    return (draft.graph(), tuple(made)) if draft and made else (graph, ())
