"""Which ops can do without an operand because only its layout matters to them? All that the law of layouts admits."""

from outgrow.errors import NotApplicable
from outgrow.ir.graph import Graph
from outgrow.operators.layouts import layout_only
from outgrow.plan import ByLayout
from outgrow.planning.problem import Problem
from outgrow.rewriting.by_layout import by_layout
from outgrow.rewriting.draft import Draft


def layouts_asked(_problem: Problem, graph: Graph) -> tuple[Graph, tuple[ByLayout, ...]]:
    """Return the graph in which no op reads an operand of which only the layout matters, and the decisions."""
    decisions: list[ByLayout] = []
    draft = Draft(graph)
    for op in graph.ops:
        if not layout_only(op):
            continue
        decision = ByLayout(op.name)
        try:
            by_layout(draft, decision)
        except NotApplicable:
            continue
        decisions.append(decision)
    return draft.graph(), tuple(decisions)
