"""The law of layouts: an op that asks only how an operand lies in memory does not need the operand."""

from outgrow.ir.graph import Ref, Role, asking_layouts
from outgrow.operators.layouts import layout_only
from outgrow.plan import ByLayout
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import require, required_place


def by_layout(draft: Draft, decision: ByLayout) -> None:
    """Give an op the layout alone of operands whose content does not matter to it.

    rewrite:
        storage x input 16
        storage a 16
        storage g 8
        storage b 16
        value %x: x@0 f32[1,1,1,4]
        %a: a@0 f32[1,1,1,4] = aten.neg.default(%x)
        %g: g@0 f32[1,1,1,2] = aten.avg_pool2d.default(%a, [1, 2])
        %b: b@0 f32[1,1,1,4] = aten.avg_pool2d_backward.default(%g, %a, [1, 2])
        return %b
    with:
        ByLayout(op="avg_pool2d_backward")
    provided:
        the operator returns the same whatever the operand holds; the operand's storage is not persistent and is written
        by another op of the step.
    because:
        the op gets a stand-in of the same dtype, shape, strides and offset, so the same kernel runs in the same way.
    ->
        storage x input 16
        storage a 16
        storage g 8
        storage b 16
        value %x: x@0 f32[1,1,1,4]
        %a: a@0 f32[1,1,1,4] = aten.neg.default(%x)
        %g: g@0 f32[1,1,1,2] = aten.avg_pool2d.default(%a, [1, 2])
        %b: b@0 f32[1,1,1,4] = aten.avg_pool2d_backward.default(%g, like %a, [1, 2])
        return %b
    """
    place = required_place(draft, decision.op)
    positions = layout_positions(draft, place)
    require(bool(positions), f"{decision.op} reads the content of all its operands that may go")
    draft.replace(place, asking_layouts(draft.op(place), positions))


def layout_positions(draft: Draft, place: Place) -> list[int]:
    """Return the positions of the operands that the op at a place may be given by layout.

    An input that no op uses stays to the end of the step, so an operand that no other op writes is left as it is.
    """
    op = draft.op(place)
    found: list[int] = []
    for at in layout_only(op):
        argument = op.arguments[at] if at < len(op.arguments) else None
        if not isinstance(argument, Ref):
            continue
        storage = draft.storages[draft.values[argument.value].storage]
        is_made = any(storage.name in draft.written(other) for other in draft.touching(storage.name) if other != place)
        if is_made and not storage.is_persistent and storage.role is not Role.SCALAR:
            found.append(at)
    return found
