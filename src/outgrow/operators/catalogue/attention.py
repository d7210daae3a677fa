"""Attention, as the library computes it at once, and its gradients: each head of each sequence by itself."""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry
from outgrow.operators.tdl import ALL, Element, Operand, OperatorCall, OperatorResult, applied, indices

b, h = indices("b h")


def by_heads(call: OperatorCall) -> list[OperatorResult | None]:
    """Sequences and heads come first in all tensors; a mask may be the same for all of them."""
    read = applied(*map(_of_head, call.operands))
    shapes = call.shapes
    return [None if shape is None else OperatorResult.at((b, h, *(ALL for _ in shape[2:])), read) for shape in shapes]


def _of_head(operand: Operand) -> Element:
    first = tuple(0 if size == 1 else place for size, place in zip(operand.shape[:2], (b, h), strict=True))
    return operand[(*first, *(ALL for _ in operand.shape[2:]))]


ENTRIES: Mapping[str, Entry] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": Entry(by_heads),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": Entry(by_heads),
}
