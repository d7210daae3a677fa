"""The law of re-use: an elementwise op may write over an operand that dies there."""

from dataclasses import replace

from outgrow.ir.graph import Op, Ref, Value, read_values
from outgrow.operators.in_place import IN_PLACE
from outgrow.plan import Decision, Reuse
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import place_of, require


def reuse(draft: Draft, decision: Decision) -> None:
    """Write the result of an op into the memory of its first operand.

    rewrite:
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        %b: b@0 f32[2] = aten.relu.default(%a)
        %c: c@0 f32[2] = aten.exp.default(%b)
        return %c
    with:
        Reuse(op="relu")
    provided:
        the operator has an in-place form; the operand's storage is not persistent, no other op uses it
        later, and operand and result are whole storages of equal shape, strides and dtype.
    because:
        each element of the result depends on the operand's element at its own place alone, and the same
        kernel computes it.
    ->
        storage x input 8
        storage a 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        relu: %b: a@1 f32[2] = aten.relu_.default(%a)
        %c: c@0 f32[2] = aten.exp.default(%b)
        return %c
    """
    assert isinstance(decision, Reuse), "the law of re-use takes a Reuse"
    place = place_of(draft, decision.op, "reuse")
    reason = why_not(draft, place)
    require(reason is None, "reuse", reason or "")
    op = draft.op(place)
    operand, result = _operand_and_result(draft, op)
    draft.rename_storage(result.storage, operand.storage, operand.version + 1)
    draft.replace(place, replace(op, operator=IN_PLACE[op.operator]))


def why_not(draft: Draft, place: Place) -> str | None:
    """Return why the op at a place may not write over its first operand, or None if it may."""
    op = draft.op(place)
    if op.operator not in IN_PLACE:
        return f"{op.operator} has no in-place form"
    if not isinstance(next(iter(op.arguments), None), Ref):
        return f"{op.name} has no tensor as its first argument"
    if len(op.results) != 1 or op.results[0] is None:
        return f"{op.name} does not have one result"
    operand, result = _operand_and_result(draft, op)
    storage = draft.storages[operand.storage]
    if storage.is_persistent or result.version != 0:
        return f"{operand.storage} outlives the step or {op.name} already writes in place"
    if storage.size_bytes != draft.storages[result.storage].size_bytes:
        return f"{operand.storage} and {result.storage} differ in size"
    if (operand.shape, operand.strides, operand.offset, operand.dtype) != (
        result.shape, result.strides, result.offset, result.dtype,
    ):  # fmt: skip
        return f"{operand.name} and {result.name} differ in layout"
    others = (draft.values[name] for name in _other_reads(op))
    if any(other.storage == operand.storage for other in others):
        return f"{op.name} reads {operand.storage} through another view"
    if _is_used_after(draft, operand.storage, place):
        return f"{operand.storage} is used after {op.name}"
    return None


def _operand_and_result(draft: Draft, op: Op) -> tuple[Value, Value]:
    argument, name = op.arguments[0], op.results[0]
    assert isinstance(argument, Ref), "why_not asks for an operand"
    assert name is not None, "why_not asks for a result"
    return draft.values[argument.value], draft.values[name]


def _other_reads(op: Op) -> tuple[str, ...]:
    """The values that `op` reads beside its first operand."""
    rest = replace(op, arguments=op.arguments[1:])
    return tuple(name for name in read_values(rest) if Ref(name) != op.arguments[0])


def _is_used_after(draft: Draft, storage: str, place: Place) -> bool:
    if any(draft.values[name].storage == storage for name in draft.results):
        return True
    return any(draft.precedes(place, other) for other in draft.touching(storage))
