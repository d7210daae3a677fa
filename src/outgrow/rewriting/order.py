"""The law of order: ops that do not conflict may change places."""

from outgrow.analysis.dependence import latest_dependence
from outgrow.ir.graph import Graph, Op
from outgrow.plan import Decision, Move
from outgrow.rewriting.rule import position_of, require, with_instructions


def move(graph: Graph, decision: Decision) -> Graph:
    """Run some ops earlier.

    rewrite:
        storage w parameter 8
        storage g 8
        storage h 8
        value %w: w@0 f32[2]
        %g: g@0 f32[2] = aten.neg.default(%w)
        %h: h@0 f32[2] = aten.exp.default(%g)
        %w1: w@1 f32[2] = aten.add_.Tensor(%w, %g)
        return %h
    with:
        Move(ops=("add_",), after="neg")
    provided:
        no moved op conflicts with an op that it passes.
    because:
        every op still reads the same versions, so it computes the same bits.
    ->
        storage w parameter 8
        storage g 8
        storage h 8
        value %w: w@0 f32[2]
        %g: g@0 f32[2] = aten.neg.default(%w)
        %w1: w@1 f32[2] = aten.add_.Tensor(%w, %g)
        %h: h@0 f32[2] = aten.exp.default(%g)
        return %h
    """
    assert isinstance(decision, Move), "the law of order takes a Move"
    moved = set(decision.ops)
    for name in decision.ops:
        position_of(graph, name, "move")
    after = position_of(graph, decision.after, "move")
    require(decision.after not in moved, "move", f"{decision.after} cannot follow itself")
    last = max(graph.op_positions[name] for name in decision.ops)
    first = min(graph.op_positions[name] for name in decision.ops)
    require(after < first, "move", f"{decision.after} does not precede {graph.instructions[first]}")
    passing = tuple(item for item in graph.instructions[after + 1 : last + 1])
    require(all(isinstance(item, Op) for item in passing), "move", "a transfer is in the way")
    ops = [item for item in passing if isinstance(item, Op)]
    going = [op for op in ops if op.name in moved]
    staying = [op for op in ops if op.name not in moved]
    obstacle = latest_dependence(graph, going, staying)
    require(obstacle is None, "move", f"{obstacle.name if obstacle else ''} conflicts with a moved op")
    head, tail = graph.instructions[: after + 1], graph.instructions[last + 1 :]
    return with_instructions(graph, (*head, *going, *staying, *tail))
