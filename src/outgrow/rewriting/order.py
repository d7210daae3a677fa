"""The law of order: ops that do not conflict may change places."""

from outgrow.ir.graph import Op
from outgrow.plan import Decision, Move
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import place_of, require


def move(draft: Draft, decision: Decision) -> None:
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
    moved = draft.in_order([place_of(draft, name, "move") for name in decision.ops])
    after = place_of(draft, decision.after, "move")
    require(after not in moved, "move", f"{decision.after} cannot follow itself")
    require(draft.precedes(after, moved[0]), "move", f"{decision.after} does not precede {draft.op(moved[0]).name}")
    require(not draft.has_transfer_between(after, moved[-1]), "move", "a transfer is in the way")
    for place in moved:
        for other in draft.conflicts(place):
            is_passed = draft.precedes(after, other) and draft.precedes(other, place) and other not in moved
            require(not is_passed, "move", f"{_name(draft, other)} conflicts with a moved op")
    for place in reversed(moved):
        draft.move_after(place, after)


def _name(draft: Draft, place: Place) -> str:
    item = draft.item(place)
    return item.name if isinstance(item, Op) else "a transfer"
