"""The law of parts: an op that computes several results may compute them one after the other."""

from outgrow.ir.graph import result_values
from outgrow.operators.parts import parts
from outgrow.plan import TakeApart
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import require_none, required_place


def take_apart(draft: Draft, decision: TakeApart) -> None:
    """Let the parts of an op run in its place, one after the other.

    rewrite:
        storage x input 16
        storage g input 16
        storage w parameter 4
        storage a 16
        storage b 4
        value %x: x@0 f32[1,1,4]
        value %g: g@0 f32[1,1,4]
        value %w: w@0 f32[1,1,1]
        back: %a: a@0 f32[1,1,4], %b: b@0 f32[1,1,1], _ = aten.convolution_backward.default(%g, %x, %w, None, [1], [0], [1], False, [0], 1, [True, True, False])
        return %a, %b
    with:
        TakeApart(op="back")
    provided:
        the operator's results are computed by kernels of their own; the op is a captured one, and all that it writes
        are storages that it brings into being and that are not persistent.
    because:
        each part runs the kernel that computes its results in the whole, on the same operands.
    ->
        storage x input 16
        storage g input 16
        storage w parameter 4
        storage a 16
        storage b 4
        value %x: x@0 f32[1,1,4]
        value %g: g@0 f32[1,1,4]
        value %w: w@0 f32[1,1,1]
        back.weight: _, %b: b@0 f32[1,1,1], _ = aten.convolution_backward.default(%g, %x, %w, None, [1], [0], [1], False, [0], 1, [False, True, False])
        back.input: %a: a@0 f32[1,1,4], _, _ = aten.convolution_backward.default(%g, %x, %w, None, [1], [0], [1], False, [0], 1, [True, False, False])
        return %a, %b
    """  # noqa: E501
    place = required_place(draft, decision.op)
    require_none(why_not(draft, place))
    *before, last = parts(draft.op(place))
    for part in before:
        draft.insert_before(place, part)
    draft.replace(place, last)


def why_not(draft: Draft, place: Place) -> str | None:
    """Return why the op at a place may not be taken apart, or None if it may."""
    op = draft.op(place)
    own = parts(op)
    if not own:
        return f"{op.name} ({op.operator}) is one piece"
    if any(draft.place_of(part.name) is not None for part in own):
        return f"the name of a part of {op.name} is taken"
    results = [draft.values[name] for name in result_values(op)]
    if op.writes or any(value.version != 0 or draft.storages[value.storage].is_persistent for value in results):
        return f"{op.name} changes what is there before it"
    if len({value.storage for value in results}) < len(results):
        return f"two results of {op.name} lie in one storage"
    return None
