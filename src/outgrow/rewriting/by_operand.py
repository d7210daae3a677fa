"""The law of operands: an op that puts its operands side by side may put one after the other there."""

from dataclasses import replace
from itertools import pairwise

from outgrow.ir.graph import Value
from outgrow.operators.in_turn import in_turn
from outgrow.plan import ByOperand
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import reading, require_none, required_place, returning


def by_operand(draft: Draft, decision: ByOperand) -> None:
    """Let one op for each operand of an op put that into the result, so that they need not all be there at once.

    rewrite:
        storage x input 8
        storage a 8
        storage b 8
        storage c 16
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        %b: b@0 f32[2] = aten.exp.default(%a)
        cat: %c: c@0 f32[4] = aten.cat.default([%a, %b])
        return %c
    with:
        ByOperand(op="cat", order=(1, 0))
    provided:
        the operator does nothing but put its operands side by side, and these are of the result's type; the op is a
        captured one, and brings its result into being, which is not persistent. The order names each operand once.
    because:
        a copy does not change bits, and no two operands have a place in common.
    ->
        storage x input 8
        storage a 8
        storage b 8
        storage c 16
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        %b: b@0 f32[2] = aten.exp.default(%a)
        cat.1: %c.1: c@0 f32[4] = outgrow_kernels.begin.default(%b, [4], [1], 0, 2)
        cat.0: %c: c@1 f32[4] = outgrow_kernels.put_.default(%c.1, %a, 0, 0)
        return %c
    """
    place = required_place(draft, decision.op)
    require_none(why_not(draft, place, decision.order))
    turns, result = in_turn(draft.op(place), draft.values), _result(draft, place)
    first, *others = decision.order
    draft.age(result.storage, len(others))
    names = [_so_far(result.name, at) for at in decision.order[:-1]]
    for version, name in enumerate(names):
        draft.add_value(replace(result, name=name, version=version))
    draft.insert_before(place, returning(turns[first][0], {result.name: names[0]}))
    for at, (before, after) in zip(others, pairwise((*names, result.name)), strict=True):
        put = returning(reading(turns[at][1], {result.name: before}), {result.name: after})
        if after == result.name:
            draft.replace(place, put)
        else:
            draft.insert_before(place, put)


def why_not(draft: Draft, place: Place, order: tuple[int, ...]) -> str | None:
    """Return why the op at a place may not put its operands into its result in this order, or None if it may."""
    op = draft.op(place)
    turns = in_turn(op, draft.values)
    if not turns:
        return f"{op.name} ({op.operator}) does more than put operands of one type side by side"
    if sorted(order) != [*range(len(turns))]:
        return f"{list(order)} does not name each of the {len(turns)} operands of {op.name} once"
    result = _result(draft, place)
    if result.version != 0 or draft.storages[result.storage].is_persistent:
        return f"{op.name} changes what is there before it"
    is_taken = any(draft.place_of(begin.name) is not None for begin, _ in turns)
    if is_taken or any(_so_far(result.name, at) in draft.values for at in order):
        return f"the name of a turn of {op.name} is taken"
    return None


def _result(draft: Draft, place: Place) -> Value:
    return draft.values[str(draft.op(place).results[0])]


def _so_far(result: str, at: int) -> str:
    """The name of a result in which the operand of this number was put, and some are missing."""
    return f"{result}.{at}"
