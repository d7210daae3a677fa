"""Of which operands does an operator ask the layout alone?

Gradients of pooling, padding and selection depend on where the operand's elements were, not on what they were; the
gradient of a convolution's input does not depend on that input, nor the weight's on the weight. These operators still
take the operand, for its dtype, sizes and strides. What they return is the same whatever it holds. Some copy it on the
way to other memory without looking at it (a convolution of mixed layouts, or of several groups in torch's own
kernels), so it has to be readable.
"""

from collections.abc import Mapping

from outgrow.ir.graph import Op
from outgrow.operators.convolutions import BACKWARD, CONVOLUTION_BACKWARD, MASK

_POSITIONS: Mapping[str, tuple[int, ...]] = {
    f"aten.{name}.default": (1,)
    for name in (
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices_backward",
        "avg_pool2d_backward",
        "avg_pool3d_backward",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward",
        "reflection_pad2d_backward",
        "reflection_pad3d_backward",
        "replication_pad2d_backward",
        "replication_pad3d_backward",
        "nll_loss_backward",
        "nll_loss2d_backward",
    )
} | {
    f"aten.{name}.default": (0,)
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
}


def layout_only(op: Op) -> tuple[int, ...]:
    """Return the positions of the arguments of `op` whose content has no influence on what it returns.

    >>> layout_only(Op("pool", "aten.avg_pool2d_backward.default"))
    (1,)
    """
    if op.operator == CONVOLUTION_BACKWARD and len(op.arguments) > MASK:
        match op.arguments[MASK]:
            case (True, False, False):
                return (BACKWARD.source,)
            case (False, True, bool()):
                return (BACKWARD.weight,)
            case _:
                return ()
    return _POSITIONS.get(op.operator, ())
