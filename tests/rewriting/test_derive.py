"""A derivation is data: it prints."""

from outgrow.ir.text import fingerprint, parse_graph
from outgrow.plan import Budget, Estimate, Plan, Reuse
from outgrow.rewriting.derive import carried_out, verified

GRAPH = parse_graph(
    """
    storage x input 8
    storage a 8
    storage b 8
    value %x: x@0 f32[2]
    %a: a@0 f32[2] = aten.neg.default(%x)
    %b: b@0 f32[2] = aten.relu.default(%a)
    return %b
    """
)
PLAN = Plan(
    planner="by hand",
    fingerprint=fingerprint(GRAPH),
    budget=Budget(16),
    decisions=(Reuse("relu"),),
    predicted=Estimate(16, 0.0),
    floor_bytes=16,
    floor_op="relu",
    in_core=Estimate(24, 0.0),
    bound_seconds=0.0,
)


def test_a_derivation_prints_a_line_for_each_law() -> None:
    """The lines begin with the fingerprint of the graph that they reach."""
    derivation = verified(GRAPH, PLAN, carried_out(GRAPH, PLAN.decisions), {})
    assert str(derivation).splitlines() == [
        f"{fingerprint(GRAPH)}  captured",
        f"{fingerprint(derivation.graph)}  reuse  Reuse(op='relu', operand=0)",
    ]
