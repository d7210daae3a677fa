"""The law of order: ops that do not conflict may change places."""

from outgrow.errors import NotApplicable
from outgrow.ir.graph import Op
from outgrow.plan import Move
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import require, required_place


def move(draft: Draft, decision: Move) -> None:
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
    require(bool(decision.ops), "no op is named")
    moved = draft.in_order([required_place(draft, name) for name in decision.ops])
    after = required_place(draft, decision.after)
    require(after not in moved, f"{decision.after} cannot follow itself")
    require(draft.precedes(after, moved[0]), f"{decision.after} does not precede {draft.op(moved[0]).name}")
    require(not draft.has_transfer_between(after, moved[-1]), "a transfer is in the way")
    for place in moved:
        for other in dict.fromkeys(draft.conflicts(place)):  # checks share a storage with each update
            if draft.precedes(after, other) and draft.precedes(other, place) and other not in moved:
                raise NotApplicable(f"{_name(draft, other)} conflicts with a moved op")
    for place in reversed(moved):
        draft.move_after(place, after)


def _name(draft: Draft, place: Place) -> str:
    item = draft.item(place)
    return item.name if isinstance(item, Op) else "a transfer"
