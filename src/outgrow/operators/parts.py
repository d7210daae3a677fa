"""Which ops can be taken apart into ops that compute a part of the results each, with equal bits?

The backward of a convolution returns up to three gradients, and a mask says which are asked for. Those of weight and
bias need the output's gradient and the input; that of the input needs the output's gradient and the weight. The library
computes them one after the other by kernels of their own, so to ask for them one after the other gives the same bits.

A part is called after its op, and is listed in the order in which the parts run: the weight's gradient first, since the
input may be gone before the gradient of the same size is born. In the other order, all three have to be there at once.
"""

from dataclasses import replace

from outgrow.ir.graph import Op, Ref
from outgrow.operators.convolutions import CONVOLUTION_BACKWARD, MASK


def parts(op: Op) -> tuple[Op, ...]:
    """Return the ops that together compute what `op` computes, in the order in which they run; none if it is one piece.

    A repetition is one piece: what can be taken apart is the captured op.
    """
    if op.operator != CONVOLUTION_BACKWARD or op.origin or len(op.arguments) <= MASK:
        return ()
    match op.arguments[MASK], op.results:
        case (True, True, bool(has_bias)), (str(input_gradient), str(weight_gradient), bias_gradient):
            weight = _part(op, "weight", (False, True, has_bias), (None, weight_gradient, bias_gradient))
            return (weight, _part(op, "input", (True, False, False), (input_gradient, None, None)))
        case _:
            return ()


def _part(op: Op, suffix: str, mask: tuple[bool, bool, bool], results: tuple[str | None, ...]) -> Op:
    arguments = (*op.arguments[:MASK], mask, *op.arguments[MASK + 1 :])
    return replace(op, name=f"{op.name}.{suffix}", arguments=arguments, results=results)


def operands_of_weight_gradient(op: Op) -> tuple[str, str] | None:
    """Return the values of the output's gradient and of the input, of an op that gives the weight's gradient alone."""
    match op.operator, op.arguments:
        case operator, (Ref(gradient), Ref(kept), *rest) if operator == CONVOLUTION_BACKWARD and len(rest) + 2 > MASK:
            mask = op.arguments[MASK]
            return (gradient, kept) if isinstance(mask, tuple) and mask[:2] == (False, True) else None
        case _:
            return None
