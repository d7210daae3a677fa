"""Which ops can do without an operand because only its layout matters to them? All that the law of layouts admits."""

from outgrow.ir.graph import Graph
from outgrow.operators.layouts import layout_only
from outgrow.plan import ByLayout
from outgrow.planning.free.admitted import admitted
from outgrow.planning.problem import Problem


def layouts_asked(_problem: Problem, graph: Graph) -> tuple[Graph, tuple[ByLayout, ...]]:
    """Return the graph in which no op reads an operand of which only the layout matters, and the decisions."""
    return admitted(graph, ([ByLayout(op.name)] for op in graph.ops if layout_only(op)))
