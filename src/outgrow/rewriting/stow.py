"""The law of stowing: between steps a storage may rest in the next tier."""

from dataclasses import replace

from outgrow.ir.graph import DEVICE, TIER
from outgrow.plan import Stow
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.rule import outlives, require, required_place
from outgrow.rewriting.swap import come_back, leave, moved_bytes


def stow(draft: Draft, decision: Stow) -> None:
    """Let a storage that outlives the step rest in the next tier from its last use to its first one in the next step.

    rewrite:
        storage x input 8
        storage m optimizer 8
        storage b 8
        value %x: x@0 f32[2]
        value %m: m@0 f32[2]
        %b: b@0 f32[2] = aten.neg.default(%x)
        %m1: m@1 f32[2] = aten.add_.Tensor(%m, %b)
        relu: %c: b@1 f32[2] = aten.relu_.default(%b)
        return %c
    with:
        Stow(storage="m", pieces=(Piece(0, 8, "neg"),), before="add_", after="add_", dropped=None)
    provided:
        the storage is persistent or holds a result, and its home is the device; no op touches it before its first use,
        nor from the drop on; the pieces are its bytes, each once; none, for a storage that is born in the step; and a
        storage that is not copied out is not written. One that no op touches is not copied at all.
    because:
        the step begins with the bytes that the last one left, wherever they lie, and copies change none of them.
    ->
        storage x input 8
        storage m optimizer 8 at tier
        storage b 8
        value %x: x@0 f32[2]
        value %m: m@0 f32[2]
        swap_in m 0:8
        %b: b@0 f32[2] = aten.neg.default(%x)
        wait m
        %m1: m@1 f32[2] = aten.add_.Tensor(%m, %b)
        swap_out m
        relu: %c: b@1 f32[2] = aten.relu_.default(%b)
        wait m
        drop m
        return %c
    """
    name = decision.storage
    require(name in draft.storages, f"the graph has no storage {name}")
    storage, uses = draft.storages[name], draft.touching(name)
    require(outlives(draft, name), f"{name} does not outlive the step")
    require(storage.home == DEVICE, f"{name} rests in {storage.home} already")
    if not uses:
        require(decision == Stow(name, (), None, None, None), f"{name} is not used in the step, and not copied")
        draft.storages[name] = replace(storage, home=TIER)
        return
    last = uses[-1]
    after = None if decision.after is None else required_place(draft, decision.after)
    require(after in (None, last), f"{decision.after} is not the last use of {name}")
    is_same = not draft.is_born(name) and not any(name in draft.written(place) for place in uses)
    require(after is not None or is_same, f"the step writes {name}, which is not copied out")
    dropped = draft.end if decision.dropped is None else required_place(draft, decision.dropped)
    require(draft.precedes(last, dropped), f"{name} is used behind {decision.dropped}")
    before = None if decision.before is None else required_place(draft, decision.before)
    is_first = before is None if draft.is_born(name) else before == uses[0]
    require(is_first, f"{decision.before} is not the first use of {name}")
    if before is None:
        require(not decision.pieces, f"{name} is born in the step, and nothing of it comes back")
    else:
        moved = moved_bytes(draft, name, decision.pieces, draft.begin, before)
        require(moved == storage.size_bytes, f"{moved} of {storage.size_bytes} bytes of {name} come back")
    draft.storages[name] = replace(storage, home=TIER)
    leave(draft, name, storage.size_bytes, after, dropped)
    if before is not None:
        come_back(draft, name, decision.pieces, before)
