"""How much work is an op? Flops and bytes, read off the shapes of its operands and results.

    convolution            2 * |output| * input channels per group * kernel size
    convolution backward   as much for each gradient that its output mask asks for
    matrix product         2 * m * k * n
    attention              4 * batch * heads * queries * keys * width, 2.5 times that backward
    everything else        no flops worth counting: bytes decide

Bytes are those of every operand and result once. Sizes of values are those of their views. An operator that only makes
room, or waits, moves none.
"""

from math import prod

from outgrow.ir.graph import Graph, Op, Ref, Value, result_values
from outgrow.ir.layout import ITEM_BYTES
from outgrow.operators.convolutions import BACKWARD, CONVOLUTION, CONVOLUTION_BACKWARD, FORWARD, GRADIENT, MASK

PRODUCTS = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1}
"""Matrix products, and the position of the first factor."""
_MOVING_NOTHING = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "arrived"})


def value_bytes(value: Value) -> int:
    """Return the bytes of the elements of a value; 0 for a host scalar, 4 for each of a dtype of unknown size."""
    return prod(value.shape) * ITEM_BYTES.get(value.dtype, 4)


def moved_bytes(graph: Graph, op: Op) -> int:
    """Return the bytes that `op` reads and writes."""
    if _MOVING_NOTHING.intersection(op.operator.split(".")):
        return 0
    return sum(value_bytes(graph.values[name]) for name in (*op.operands, *result_values(op)))


def flops(graph: Graph, op: Op) -> float:
    """Return the floating point operations of `op`; 0 where bytes decide."""
    operands = [graph.values[item.value] if isinstance(item, Ref) else None for item in op.arguments]
    results = [graph.values[name] if name else None for name in op.results]
    if op.operator == CONVOLUTION:
        spread = operands[FORWARD.source] if op.arguments[FORWARD.transposed] is True else results[0]
        return _convolution(spread, operands[FORWARD.weight])
    if op.operator == CONVOLUTION_BACKWARD:
        mask = op.arguments[MASK]
        asked = sum(flag is True for flag in mask[:2]) if isinstance(mask, tuple) else 2
        spread = operands[BACKWARD.source if op.arguments[BACKWARD.transposed] is True else GRADIENT]
        return asked * _convolution(spread, operands[BACKWARD.weight])
    if op.operator in PRODUCTS:
        left = operands[PRODUCTS[op.operator]]
        return 2.0 * prod(results[0].shape) * left.shape[-1] if left and results[0] else 0.0
    if "scaled_dot_product" in op.operator:
        return _attention(operands, backward="backward" in op.operator)
    return 0.0


def _convolution(spread: Value | None, weight: Value | None) -> float:
    """`spread` is the side on which the weight is applied at every position: (batch, channels, positions...)."""
    if spread is None or weight is None:
        return 0.0
    return 2.0 * spread.shape[0] * prod(spread.shape[2:]) * prod(weight.shape)


def _attention(operands: list[Value | None], *, backward: bool) -> float:
    shaped = [operand for operand in operands if operand and len(operand.shape) == 4]
    query, key = (shaped[1], shaped[2]) if backward else (shaped[0], shaped[1])
    return (10.0 if backward else 4.0) * prod(query.shape) * key.shape[2]
