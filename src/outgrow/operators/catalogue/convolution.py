"""Convolutions in one to three dimensions, grouped or not, and their gradients.

With stride s, padding p and dilation l, and `of(co)` for the input channels that the group of an output channel reads,

    y[b, co, i]  = bias[co] + Sum over ci, d of  x[b, of(co) + ci, i s - p + d l] w[co, ci, d]
    w'[co, ci, d] =           Sum over b, i of   x[b, of(co) + ci, i s - p + d l] y'[b, co, i]
    x'[b, c, ...] =           Sum over co of a function of y'[b, co, ...] and w[co, c - of(co), ...]
    bias'[co]     =           Sum over b, i of   y'[b, co, i]

The gradient of the input is not cut in space: the places of y' that matter to one of x' are not affine in it.
With groups it is described another way, so it is not cut into single groups. Transposed convolutions are described
where they have no groups, and are not cut in space.
"""

from collections.abc import Callable, Mapping

from outgrow.operators.catalogue.entry import Entry, asked, whole_number, whole_numbers, with_argument
from outgrow.operators.convolutions import BACKWARD, BIAS_SIZES, CONVOLUTION, CONVOLUTION_BACKWARD, FORWARD, Positions
from outgrow.operators.tdl import ALL, Operand, OperatorCall, OperatorResult, Place, Sum, applied, indices, numbered

b, co, ci = indices("b co ci")


def convolution(call: OperatorCall) -> list[OperatorResult | None]:
    """The result from input, weight and bias."""
    x, w, *bias = call.operands
    if call.arguments[FORWARD.transposed]:
        return _transposed(call)
    i, d, window = _space(call, x, FORWARD)
    value = Sum((ci, *d), x[b, _first_channel(w, call, FORWARD) + ci, *window] * w[co, ci, *d])
    return [OperatorResult.at((b, co, *i), bias[0][co] + value if bias else value)]


def convolution_backward(call: OperatorCall) -> list[OperatorResult | None]:
    """The gradients of input, weight and bias, those that are asked for."""
    y, x, w = call.operands
    if call.arguments[BACKWARD.transposed]:
        return _transposed_backward(call)
    i, d, window = _space(call, x, BACKWARD)
    of_weight = x[b, _first_channel(w, call, BACKWARD) + ci, *window] * y[b, co, *i] * w[co, ci, *d]
    results = (
        _of_input(y, x, w, whole_number(call.arguments[BACKWARD.groups])),
        OperatorResult.at((co, ci, *(ALL for _ in d)), Sum((b, *i), of_weight)),
        OperatorResult.at((co,), Sum((b, *i), y[b, co, *i])),
    )
    return asked(call, results)


def _of_input(y: Operand, x: Operand, w: Operand, groups: int) -> OperatorResult:
    """Return the input's gradient; with groups, of a channel all outputs of its group matter, the first to the last."""
    everywhere = tuple(ALL for _ in x.shape[2:])
    if groups == 1:
        value = x[b, ci, *everywhere] * y[b, co, *everywhere] * w[co, ci, *everywhere]
        return OperatorResult.at((b, ci, *everywhere), Sum((co,), value))
    inputs, outputs = w.shape[1], w.shape[0] // groups
    (c,) = indices("c")
    ends = [c // inputs * outputs + output for output in (0, outputs - 1)]
    parts = [y[b, end, *everywhere] * w[end, c % inputs, *everywhere] for end in ends]
    return OperatorResult.at((b, c, *everywhere), applied(x[b, c, *everywhere], *parts))


def _transposed(call: OperatorCall) -> list[OperatorResult | None]:
    """A convolution whose weight is applied to each place of the input; without groups, and not cut in space."""
    x, w, *bias = call.operands
    everywhere = tuple(ALL for _ in x.shape[2:])
    value = Sum((ci,), x[b, ci, *everywhere] * w[ci, co, *everywhere])
    is_grouped = call.arguments[FORWARD.groups] != 1
    return [None if is_grouped else OperatorResult.at((b, co, *everywhere), bias[0][co] + value if bias else value)]


def _transposed_backward(call: OperatorCall) -> list[OperatorResult | None]:
    """The gradients of input, weight and bias, those that are asked for."""
    y, x, w = call.operands
    everywhere = tuple(ALL for _ in x.shape[2:])
    read = x[b, ci, *everywhere] * y[b, co, *everywhere] * w[ci, co, *everywhere]
    results = (
        OperatorResult.at((b, ci, *everywhere), Sum((co,), read)),
        OperatorResult.at((ci, co, *everywhere), Sum((b,), read)),
        OperatorResult.at((co,), Sum((b,), y[b, co, *everywhere])),
    )
    return asked(call, results) if call.arguments[BACKWARD.groups] == 1 else [None for _ in results]


def _space(
    call: OperatorCall, x: Operand, at: Positions
) -> tuple[tuple[Place, ...], tuple[Place, ...], tuple[Place, ...]]:
    """Return the variables of the result's places and of the kernel's, and the place of the input that they meet at."""
    count = len(x.shape) - 2
    positions = at.strides, at.padding, at.dilation
    strides, padding, dilation = (whole_numbers(call.arguments[position], count) for position in positions)
    i, d = numbered("i", count), numbered("d", count)
    steps = zip(i, d, strides, padding, dilation, strict=True)
    return i, d, tuple(to * stride - pad + of * apart for to, of, stride, pad, apart in steps)


def _first_channel(w: Operand, call: OperatorCall, at: Positions) -> Place | int:
    """Return the first input channel that an output channel reads."""
    groups = whole_number(call.arguments[at.groups])
    return 0 if groups == 1 else co // (w.shape[0] // groups) * w.shape[1]


def _adapted(at: Positions) -> Callable[[OperatorCall, str], OperatorCall]:
    """Return how a part is called: space that was cut has no padding of its own, and whole groups stay groups."""

    def adapt(call: OperatorCall, cut: str) -> OperatorCall:
        x, w = call.operands[at.source], call.operands[at.weight]
        count = len(x.shape) - 2
        padding = whole_numbers(call.arguments[at.padding], count)
        unpadded = tuple(0 if cut == f"i{axis}" else pad for axis, pad in enumerate(padding))
        found = with_argument(call, at.padding, unpadded)
        is_transposed = call.arguments[at.transposed] is True
        if not is_transposed:
            found = with_argument(found, at.groups, x.shape[1] // w.shape[1])
        has_sizes = at is BACKWARD and call.arguments[BIAS_SIZES] is not None
        return with_argument(found, BIAS_SIZES, (w.shape[int(is_transposed)],)) if has_sizes else found

    return adapt


ENTRIES: Mapping[str, Entry] = {
    CONVOLUTION: Entry(convolution, _adapted(FORWARD)),
    CONVOLUTION_BACKWARD: Entry(convolution_backward, _adapted(BACKWARD)),
}
