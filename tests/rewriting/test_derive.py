"""A derivation is data: it prints. It has a stage for each run of decisions of a kind."""

from dataclasses import replace

from outgrow.ir.text import fingerprint, parse_graph
from outgrow.plan import Budget, Estimate, Piece, Plan, Reuse, Stow, Swap
from outgrow.rewriting.derive import apply_laws, carried_out, verified

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


def test_what_is_stowed_and_what_is_swapped_make_one_stage_together() -> None:
    """Transfers come in the order in which they come back, so laws take turns; each line says which one it was."""
    graph = parse_graph(
        """
        storage x input 8
        storage m optimizer 8
        storage n optimizer 8
        storage a 8
        storage b 8
        value %x: x@0 f32[2]
        value %m: m@0 f32[2]
        value %n: n@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %m1: m@1 f32[2] = aten.add_.Tensor(%m, %x)
        %b: b@0 f32[2] = aten.neg.default(%a)
        %n1: n@1 f32[2] = aten.add_.Tensor(%n, %x)
        return %b
        """
    )
    first, last = "add_", "add__1"
    decisions = (
        Stow("m", (Piece(0, 8, first),), first, first, None),
        Swap("a", "relu", first, (Piece(0, 8, "neg"),), "neg"),
        Stow("n", (Piece(0, 8, last),), last, last, None),
    )
    stages = carried_out(graph, (Reuse("neg"), *decisions))
    assert [len(stage.decisions) for stage in stages] == [1, 3]
    assert stages[-1].graph == apply_laws(graph, (Reuse("neg"), *decisions))
    lines = str(verified(graph, replace(PLAN, budget=Budget(32)), stages, {})).splitlines()
    laws = [line.partition("(")[0].split()[-2:] for line in lines[1:]]
    assert laws == [["reuse", "Reuse"], ["stow", "Stow"], ["swap", "Swap"], ["stow", "Stow"]]
