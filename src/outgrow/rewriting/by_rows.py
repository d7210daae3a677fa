"""The law of rows: two ops of which the second alone reads what the first makes may run as one, row by row."""

from outgrow.ir.graph import Op
from outgrow.operators.rows import joined
from outgrow.plan import ByRows
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import outlives, require_none, required_place


def by_rows(draft: Draft, decision: ByRows) -> None:
    """Let one op do what two ops do, some rows at a time, so that what the first one makes is never there as a whole.

    rewrite:
        storage g input 4
        storage x input 32
        storage t input 32
        storage n input 4
        storage l 32
        storage a 32
        storage b 32
        value %g: g@0 f32[]
        value %x: x@0 f32[4,2]
        value %t: t@0 i64[4]
        value %n: n@0 f32[]
        %l: l@0 f32[4,2] = aten._log_softmax.default(%x, 1, False)
        loss: %a: a@0 f32[4,2] = aten.nll_loss_backward.default(%g, %l, %t, None, 1, -100, %n)
        back: %b: b@0 f32[4,2] = aten._log_softmax_backward_data.default(%a, %l, 1, :torch.float32)
        return %b
    with:
        ByRows(first="loss", second="back")
    provided:
        both operators make each row of their result from the same rows of what they read, and there is a kernel that
        runs both; the operands and results that have rows lie alike; no other op uses the storage of the first result,
        which does not outlive the step, and the second brings its own result into being.
    because:
        the kernel runs both operators on the same rows, and a row does not depend on how many others are computed with
        it.
    ->
        storage g input 4
        storage x input 32
        storage t input 32
        storage n input 4
        storage l 32
        storage b 32
        value %g: g@0 f32[]
        value %x: x@0 f32[4,2]
        value %t: t@0 i64[4]
        value %n: n@0 f32[]
        %l: l@0 f32[4,2] = aten._log_softmax.default(%x, 1, False)
        back.rows: %b: b@0 f32[4,2] = outgrow_kernels.cross_entropy_backward.default(%g, %l, %t, None, 1, -100, %n, 1, :torch.float32)
        return %b
    """  # noqa: E501
    first, second = required_place(draft, decision.first), required_place(draft, decision.second)
    require_none(why_not(draft, first, second))
    one = _one(draft, first, second)
    assert one is not None, "why_not asks for it"
    made = draft.written(first)
    draft.remove(first)
    draft.replace(second, one)
    for storage in made:
        draft.remove_storage(storage)


def why_not(draft: Draft, first: Place, second: Place) -> str | None:
    """Return why the ops at two places may not run as one, or None if they may."""
    one, names = _one(draft, first, second), (draft.op(first).name, draft.op(second).name)
    if one is None:
        return f"{names[0]} and {names[1]} have no kernel that runs both by rows"
    if draft.place_of(one.name) is not None:
        return f"the name {one.name} is taken"
    (made,), (result,) = (draft.written(place) for place in (first, second))
    value = draft.values[str(draft.op(second).results[0])]
    if outlives(draft, made) or draft.touching(made) != [first, second]:
        return f"{made} is used otherwise than by {names[1]}"
    if draft.storages[result].is_persistent or value.version != 0 or made == result:
        return f"{names[1]} changes what is there before it"
    for storage in draft.touched(first):
        if storage != made and draft.version(storage, first) != draft.version(storage, second):
            return f"{storage} is written between {names[0]} and {names[1]}"
    return None


def _one(draft: Draft, first: Place, second: Place) -> Op | None:
    return joined(draft.op(first), draft.op(second), draft.values)
