"""The law of re-use: an op may write over an operand that dies there."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from outgrow.ir.graph import Op, Ref, Storage, Value
from outgrow.ir.layout import goes_in_step
from outgrow.ir.stand_ins import Form
from outgrow.operators.in_place import IN_PLACE
from outgrow.plan import Reuse
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import require_none, required_place


def reuse(draft: Draft, decision: Reuse) -> None:
    """Write the first result of an op into the memory of an operand.

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
        the operator has a form that writes over this operand; neither its storage nor that of the result is persistent,
        no other op uses the operand's later, nor does a transfer move the result's, and both are whole storages of
        equal layout, as are all operands of this shape, unless the form rounds once, and takes each by its own strides;
        operands with as many elements are of the same type; operands of complex numbers go in step with the result, and
        the form has the same bits of these. The storage has the role of the result from its birth on.
    because:
        the same kernel computes the result, and reads the operand's element at a place before it writes there; it is
        given nothing else of the result's size that it would take for the result.
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
    place = required_place(draft, decision.op)
    require_none(why_not(draft, place, decision.operand))
    op = draft.op(place)
    operand, result = _operand_and_result(draft.values, op, decision.operand)
    role = draft.storages[result.storage].role
    draft.rename_storage(result.storage, operand.storage, operand.version + 1)
    draft.storages[operand.storage] = replace(draft.storages[operand.storage], role=role)
    form = _form_of(op, decision.operand)
    assert form is not None, "why_not asks for a form"
    draft.replace(place, replace(op, operator=form.operator))


def why_not(draft: Draft, place: Place, operand: int) -> str | None:
    """Return why the op at a place may not write over its argument at `operand`, or None if it may."""
    op = draft.op(place)
    reason = misfit(draft.values, draft.storages, op, operand)
    if reason is not None:
        return reason
    old, new = _operand_and_result(draft.values, op, operand)
    if draft.transfers(new.storage):
        return f"{new.storage} is moved by a transfer"
    return f"{old.storage} is used after {op.name}" if _is_used_after(draft, old.storage, place) else None


def misfit(values: Mapping[str, Value], storages: Mapping[str, Storage], op: Op, operand: int) -> str | None:
    """Return why `op` may not write over its argument at `operand` even if that dies there, or None if it may."""
    form = _form_of(op, operand)
    if form is None:
        return f"{op.operator} has no form that writes over its argument {operand}"
    if not all(isinstance(argument, Ref) for argument in op.arguments[: operand + 1]) or operand >= len(op.arguments):
        return f"{op.name} has no tensor as its argument {operand}"
    if not op.results or op.results[0] is None:
        return f"{op.name} has no first result"
    old, new = _operand_and_result(values, op, operand)
    if form.real and new.dtype.startswith("complex"):
        return f"{form.operator} has other bits of complex numbers"
    storage = storages[old.storage]
    if storage.is_persistent or storages[new.storage].is_persistent or new.version != 0:
        return f"{old.storage} or {new.storage} outlives the step, or {op.name} already writes in place"
    if storage.size_bytes != storages[new.storage].size_bytes:
        return f"{old.storage} and {new.storage} differ in size"
    if (old.shape, old.offset) != (new.shape, new.offset):
        return f"{old.name} and {new.name} differ in layout"
    strided = form.strided and not op.keywords
    reasons = (_clash(values[name], old, new, op, strided=strided) for name in op.operands)
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is not None:
        return reason
    if any(values[name].storage == old.storage for name in op.results[1:] if name is not None):
        return f"{op.name} writes {old.storage} by another result"
    return None


def _clash(other: Value, old: Value, new: Value, op: Op, *, strided: bool) -> str | None:
    """Return why `new` may not be written over `old` where the op reads another operand as well."""
    if other.shape == new.shape and not strided and other.strides != new.strides:
        return f"{other.name} and {new.name} differ in layout"
    if new.dtype.startswith("complex") and not goes_in_step(new.shape, new.strides, other.shape, other.strides):
        return f"{other.name} and {new.name}, of complex numbers, differ in layout"
    if prod(other.shape) == prod(new.shape) and other.dtype != new.dtype:
        return f"{other.name}, which is converted first, takes as much as {new.name}"
    is_same = (other.shape, other.strides, other.offset) == (new.shape, new.strides, new.offset)
    return None if is_same or other.storage != old.storage else f"{op.name} reads {old.storage} through another view"


def _form_of(op: Op, operand: int) -> Form | None:
    """The form of an op that writes over its argument at `operand`, or None."""
    return next((form for form in IN_PLACE.get(op.operator, ()) if form.operand == operand), None)


def _operand_and_result(values: Mapping[str, Value], op: Op, operand: int) -> tuple[Value, Value]:
    argument, name = op.arguments[operand], op.results[0]
    assert isinstance(argument, Ref), "why_not asks for an operand"
    assert name is not None, "why_not asks for a result"
    return values[argument.value], values[name]


def _is_used_after(draft: Draft, storage: str, place: Place) -> bool:
    if any(draft.values[name].storage == storage for name in draft.results):
        return True
    return any(draft.precedes(place, other) for other in draft.touching(storage))
