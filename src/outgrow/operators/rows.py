"""Which two ops can run as one, some rows at a time, with equal bits?

The gradient of a cross entropy is formed by two operators: one makes the gradient of the log-probabilities, zero but
for one element of each row, the other that of the logits. For a language model each is as large as all logits. Every
row of both depends on the same row of what they read alone, and kernels go along rows. So a kernel of ours
(`frontends.lowering.by_rows`) runs both on some rows, then on the next ones, and may write over the
log-probabilities. The bits are those of the two operators.

How many rows go at a time follows from their bytes alone. It is a multiple of 64, so that a row begins as many bytes
behind a multiple of 64 as it does in the whole: kernels of a GPU add up in an order that goes by that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from outgrow.ir.graph import Graph, Op, Ref, Symbol, Value
from outgrow.ir.layout import ITEM_BYTES

JOINT = "outgrow_kernels.cross_entropy_backward.default"
"""The operator that stands for the two. Its arguments are those of the first, then what the second has of its own."""
JOINT_IN_PLACE = "outgrow_kernels.cross_entropy_backward_.default"
LOG_PROBABILITIES = 1
"""The position of the operand that the second form writes over."""

_FIRST, _SECOND = "aten.nll_loss_backward.default", "aten._log_softmax_backward_data.default"
_PART_BYTES, _UNIT = 8 << 20, 64


def rows_at_a_time(row_bytes: int) -> int:
    """Return how many rows of `row_bytes` each go at a time: up to 8 MiB, but a multiple of 64 rows.

    >>> rows_at_a_time(4 * 50257), rows_at_a_time(4000)
    (64, 2048)
    """
    return max(_UNIT, _PART_BYTES // max(1, row_bytes) // _UNIT * _UNIT)


def part_bytes(value: Value) -> int:
    """Return the bytes of those rows of a value that go at a time."""
    rows, columns = value.shape
    row_bytes = columns * ITEM_BYTES.get(value.dtype, 4)
    return min(rows, rows_at_a_time(row_bytes)) * row_bytes


def joined(first: Op, second: Op, values: Mapping[str, Value]) -> Op | None:
    """Return the op that does what two ops do, some rows at a time, and has the second's result; None without one.

    It is asked for nothing but operators, arguments and layouts; who else uses what the first one makes is not looked
    at.
    """
    if (first.operator, second.operator) != (_FIRST, _SECOND) or first.origin or second.origin:
        return None
    if first.keywords or second.keywords or first.writes or second.writes:
        return None
    match first.arguments, first.results, second.arguments, second.results:
        case (
            (Ref(), Ref(kept), Ref(), Ref() | None, int(), int(), Ref()),
            (str(made),),
            (Ref(given), Ref(read), 1 | -1 as dim, Symbol() as dtype),
            (str(result),),
        ) if made == given and kept == read:
            alike = [values[name] for name in (kept, made, result)]
            if any(not _is_table(value, alike[0]) for value in alike) or dtype.name != f"torch.{alike[0].dtype}":
                return None
            return replace(second, name=f"{second.name}.rows", operator=JOINT, arguments=(*first.arguments, dim, dtype))
        case _:
            return None


def pairs(graph: Graph) -> Iterator[tuple[Op, Op, Op]]:
    """Yield any two ops of a graph that can run as one, and that one."""
    makers = {op.results[0]: op for op in graph.ops if op.operator == _FIRST and op.results}
    for second in graph.ops if makers else ():
        if second.operator == _SECOND and second.references:
            first = makers.get(second.references[0])
            op = first and joined(first, second, graph.values)
            if first and op:
                yield first, second, op


def _is_table(value: Value, other: Value) -> bool:
    """Whether a value has rows, one directly behind the other, as another has."""
    if len(value.shape) != 2 or (value.dtype, value.shape, value.strides) != (other.dtype, other.shape, other.strides):
        return False
    return value.strides == (value.shape[1], 1) and min(value.shape) > 1
