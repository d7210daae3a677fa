"""A derivation is data: it prints, belongs to one graph, and is repeated step by step."""

from dataclasses import replace

import pytest

from outgrow.errors import InvalidPlan, ReplayMismatch
from outgrow.ir.text import fingerprint, parse_graph
from outgrow.plan import Budget, Estimate, Plan, Reuse
from outgrow.rewriting.derive import derive, replay_derivation

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
    derivation = derive(GRAPH, PLAN, {})
    assert str(derivation).splitlines() == [
        f"{fingerprint(GRAPH)}  captured",
        f"{fingerprint(derivation.graph)}  reuse  Reuse(op='relu', operand=0)",
    ]


def test_a_plan_of_another_graph_is_refused() -> None:
    """The names in a plan mean nothing in another graph, so the refusal names both."""
    with pytest.raises(InvalidPlan, match=f"made for graph {PLAN.fingerprint}, but this graph is .*Plan again"):
        derive(replace(GRAPH, results=()), PLAN, {})


def test_a_derivation_that_comes_out_differently_is_refused() -> None:
    """The first step whose graph is not the recorded one is named."""
    derivation = derive(GRAPH, PLAN, {})
    assert replay_derivation(GRAPH, derivation) == derivation.graph
    with pytest.raises(ReplayMismatch, match=r"Stage 0 \(reuse\)"):
        replay_derivation(replace(GRAPH, results=()), derivation)
