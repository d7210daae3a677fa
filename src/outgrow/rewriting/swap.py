"""The law of swapping: between two uses a storage, or the first bytes of it, may rest in the next tier."""

from collections.abc import Iterable, Sequence

from outgrow.ir.graph import Drop, SwapIn, SwapOut, Transfer, Wait
from outgrow.plan import Piece, Swap
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import flight, outlives, require, require_none, required_place


def swap(draft: Draft, decision: Swap) -> None:
    """Send the bytes of the pieces to the next tier after one use and bring them back, piece by piece, for the next.

    rewrite:
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %b: b@0 f32[2] = aten.neg.default(%x)
        %c: c@0 f32[2] = aten.add.Tensor(%b, %a)
        return %c
    with:
        Swap(storage="a", after="relu", dropped="neg", pieces=(Piece(0, 4, "neg"),), before="add")
    provided:
        no op between the drop and the next use touches the storage, none writes it while it is copied out, and it is
        not in flight between workers; the pieces are its bytes, each once, or the first of them, if the storage does
        not outlive the step; and what is not copied out has a copy of this version.
    because:
        a copy there and back changes no byte, and nothing reads the storage in between.
    ->
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        swap_out a 0:4
        wait a
        drop a 0:4
        swap_in a 0:4
        %b: b@0 f32[2] = aten.neg.default(%x)
        wait a
        %c: c@0 f32[2] = aten.add.Tensor(%b, %a)
        return %c
    """
    storage = decision.storage
    require(storage in draft.storages, f"the graph has no storage {storage}")
    dropped = required_place(draft, decision.dropped)
    before = required_place(draft, decision.before)
    after = draft.preceding(dropped) if decision.after is None else required_place(draft, decision.after)
    in_order = draft.precedes(after, dropped) and not draft.precedes(before, dropped)
    require(in_order, f"{decision.after}, {decision.dropped}, {decision.before} are out of order")
    between = [
        place for place in draft.touching(storage) if draft.precedes(after, place) and draft.precedes(place, before)
    ]
    is_resting = all(draft.precedes(place, dropped) for place in between)
    require(is_resting, f"{storage} is used before {decision.before}")
    is_written = any(storage in draft.written(place) for place in between)
    require(not is_written, f"{storage} is written while it is copied out")
    require_none(flight(draft, storage, before))
    moved = moved_bytes(draft, storage, decision.pieces, dropped, before)
    size = draft.storages[storage].size_bytes
    is_part = 0 < moved < size and not outlives(draft, storage)
    require(moved == size or is_part, f"{moved} of {size} bytes of {storage} come back")
    leave(draft, storage, moved, after if decision.after is not None else None, dropped)
    come_back(draft, storage, decision.pieces, before)


def moved_bytes(draft: Draft, storage: str, pieces: Sequence[Piece], dropped: Place, before: Place) -> int:
    """Return n for pieces that are bytes 0:n of a storage, each byte once, and begin between the drop and the use."""
    reached = 0
    for piece in sorted(pieces, key=lambda piece: piece.begin):
        is_next = piece.begin == reached and piece.end > reached
        require(is_next, f"bytes {reached} of {storage} come back never or twice")
        place = required_place(draft, piece.before)
        is_inside = not draft.precedes(place, dropped) and not draft.precedes(before, place)
        require(is_inside, f"a piece of {storage} begins outside its gap, before {piece.before}")
        reached = piece.end
    return reached


def leave(draft: Draft, storage: str, size_bytes: int, after: Place | None, dropped: Place) -> None:
    """Copy the first bytes out directly after a place (None: the tier has them); free them directly before another."""
    if after is not None:
        draft.insert_after(_last_out(draft, after), SwapOut(storage, 0, size_bytes))
    last = _behind_which(draft, dropped, (Wait, SwapIn))
    if after is not None:
        last = draft.insert_after(last, Wait(storage))
    draft.insert_after(last, Drop(storage, 0, size_bytes))


def come_back(draft: Draft, storage: str, pieces: Iterable[Piece], before: Place) -> None:
    """Bring pieces of a storage back and wait for them directly before a place."""
    for piece in pieces:
        place = required_place(draft, piece.before)
        draft.insert_after(_behind_which(draft, place, (Wait,)), SwapIn(storage, piece.begin, piece.end))
    draft.insert_before(before, Wait(storage))


def _last_out(draft: Draft, op: Place) -> Place:
    """The last of the copies out that begin directly after the op at a place, or that op."""
    place = op
    while isinstance(draft.item(draft.following(place)), SwapOut):
        place = draft.following(place)
    return place


def _behind_which(draft: Draft, op: Place, skipped: tuple[type[Transfer], ...]) -> Place:
    """What precedes the op at a place if transfers of some kinds are skipped: drops, copies in, waits come in turn."""
    place = draft.preceding(op)
    while isinstance(draft.item(place), skipped):
        place = draft.preceding(place)
    return place
