"""Which ops only put their operands side by side, so that each can be put there in its turn?

A concatenation (or a stack) needs all its operands beside its result, twice the result together. To copy one operand
after the other into the result needs the result and one operand, and moves the same bytes: kernels of ours
(`frontends.lowering.in_turn`) bring the result into being with one operand in its place, or put one more there. The
places do not overlap, so the order does not matter.
"""

from collections.abc import Mapping
from dataclasses import replace

from outgrow.ir.graph import Argument, Op, Ref, Value

BEGIN = "outgrow_kernels.begin.default"
"""The operator that brings a result into being. Arguments: operand, shape and strides of the result, dim, start."""
PUT = "outgrow_kernels.put_.default"
"""The operator that puts one more operand into a result. Arguments: result, operand, dim, start."""

_CAT, _STACK = "aten.cat.default", "aten.stack.default"


def in_turn(op: Op, values: Mapping[str, Value]) -> tuple[tuple[Op, Op], ...]:
    """Return the turn of each operand of `op`: the op that begins with it, and the one that goes on with it.

    Both are called by the number of the operand. The second reads the result as it is so far under the name of the
    result. There are no turns for an op that does anything else.
    """
    if op.operator not in (_CAT, _STACK) or op.origin or op.keywords or op.writes:
        return ()
    match op.arguments, op.results:
        case ((tuple(operands), *_), (str(result),)) if len(operands) > 1:
            names = [item.value for item in operands if isinstance(item, Ref)]
        case _:
            return ()
    made, dim = values[result], _dim(op, values[result])
    own = [values[name] for name in names]
    if len(own) < len(operands) or dim is None or any(not _fits(op, value, made, dim) for value in own):
        return ()
    lengths = [value.shape[dim] if op.operator == _CAT else 1 for value in own]
    starts = [sum(lengths[:at]) for at in range(len(own))]
    layout = (made.shape, made.strides)
    return tuple(
        (
            _turn(op, at, BEGIN, (Ref(name), *layout, dim, start)),
            _turn(op, at, PUT, (Ref(result), Ref(name), dim, start)),
        )
        for at, (name, start) in enumerate(zip(names, starts, strict=True))
    )


def operand_of(turn: Op) -> str:
    """Return the value that an op of a turn puts into the result."""
    return turn.references[-1]


def _turn(op: Op, at: int, operator: str, arguments: tuple[Argument, ...]) -> Op:
    return replace(op, name=f"{op.name}.{at}", operator=operator, arguments=arguments)


def _dim(op: Op, result: Value) -> int | None:
    """The dimension of the result along which the operands lie, counted from the first; None if that is not given."""
    match op.arguments[1:]:
        case ():
            return 0 if result.shape else None
        case (bool(),):
            return None
        case (int(dim),) if -len(result.shape) <= dim < len(result.shape):
            return dim % len(result.shape)
        case _:
            return None


def _fits(op: Op, operand: Value, result: Value, dim: int) -> bool:
    """Whether an operand is of the result's type, and of its shape in all dimensions but that one."""
    others = result.shape[:dim] + result.shape[dim + 1 :]
    own = operand.shape[:dim] + operand.shape[dim + 1 :] if op.operator == _CAT else operand.shape
    is_flat = op.operator == _STACK or len(operand.shape) == len(result.shape)
    return operand.dtype == result.dtype and is_flat and own == others
