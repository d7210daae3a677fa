"""Losses, and their gradients: of classes, and of numbers that are compared one by one.

A loss of classes is minus the logarithm of what the right class got, of one example or of each place in an image. Its
mean is computed as the sum of the losses and the sum of their weights, which are partial, and divided in the end
(`Entry.quotient`). The mean of other losses, and its gradient, are those of the sum, divided by how many there are.
"""

from collections.abc import Callable, Mapping
from math import prod

from outgrow.operators.catalogue.elementwise import elementwise
from outgrow.operators.catalogue.entry import Adapt, Entry, broadcast, with_argument
from outgrow.operators.tdl import ALL, All, OperatorCall, OperatorResult, Place, Sum, applied, numbered

_NONE, _MEAN, _SUM = 0, 1, 2
"""The codes of reductions."""
_OF_CLASSES = 3
"""The position of the reduction where classes are compared."""


def nll_loss(call: OperatorCall) -> list[OperatorResult | None]:
    """The losses, or their sum, and the sum of their weights. A single example is not described."""
    x, target, *weight = call.operands
    if len(x.shape) == 1:
        return [None for _ in call.shapes]
    at, read = _places(len(x.shape))
    value = applied(x[read], target[at], *(item[ALL] for item in weight))
    total = Sum(at, value)
    is_each = call.arguments[_OF_CLASSES] == _NONE
    return [OperatorResult.at(at, value) if is_each else OperatorResult.at((), total), OperatorResult.at((), total)]


def nll_loss_backward(call: OperatorCall) -> list[OperatorResult | None]:
    """The gradient of the logarithms, from that of the loss, the classes and the sum of weights."""
    y, x, target, *weights, total = call.operands
    if len(x.shape) == 1:
        return [None]
    at, read = _places(len(x.shape))
    parts = [y[at] if y.shape else y[()], x[read], target[at], *(item[ALL] for item in weights), total[()]]
    return [OperatorResult.at(read, applied(*parts))]


def _places(rank: int) -> tuple[tuple[Place, ...], tuple[Place | All, ...]]:
    """Return the place of an example, and that of all its classes."""
    batch, *space = numbered("i", rank - 1)
    return (batch, *space), (batch, ALL, *space)


def _mean(call: OperatorCall) -> tuple[int, int] | None:
    return (0, 1) if call.arguments[_OF_CLASSES] == _MEAN else None


def compared(reduction: int) -> Callable[[OperatorCall], list[OperatorResult | None]]:
    """Return the description of a loss of numbers; its reduction is the argument at a position."""

    def describe(call: OperatorCall) -> list[OperatorResult | None]:
        if call.arguments[reduction] == _NONE:
            return elementwise(call)
        first, *others = call.operands
        at = numbered("i", len(first.shape))
        read = (item[at] if item.shape == first.shape else broadcast(item, at) for item in others)
        return [OperatorResult.at((), Sum(at, applied(first[at], *read)))]

    return describe


def _as_sum(reduction: int) -> Adapt:
    return lambda call, _cut: with_argument(call, reduction, _SUM) if call.arguments[reduction] == _MEAN else call


def _count(reduction: int, operand: int) -> Callable[[OperatorCall], int]:
    """Return what divides a part of a mean: how many elements the whole operand has."""
    return lambda call: prod(call.operands[operand].shape) if call.arguments[reduction] == _MEAN else 1


def _comparing(reduction: int) -> Entry:
    return Entry(compared(reduction), _as_sum(reduction), divisor=_count(reduction, 0))


def _comparing_backward(reduction: int) -> Entry:
    return Entry(elementwise, _as_sum(reduction), divisor=_count(reduction, 1))


ENTRIES: Mapping[str, Entry] = {
    "aten.nll_loss_forward.default": Entry(nll_loss, _as_sum(_OF_CLASSES), quotient=_mean),
    "aten.nll_loss2d_forward.default": Entry(nll_loss, _as_sum(_OF_CLASSES), quotient=_mean),
    "aten.nll_loss_backward.default": Entry(nll_loss_backward),
    "aten.nll_loss2d_backward.default": Entry(nll_loss_backward),
    "aten.binary_cross_entropy.default": _comparing(3),
    "aten.binary_cross_entropy_backward.default": _comparing_backward(4),
    "aten.huber_loss.default": _comparing(2),
    "aten.huber_loss_backward.default": _comparing_backward(3),
    "aten.mse_loss.default": _comparing(2),
    "aten.mse_loss_backward.default": _comparing_backward(3),
    "aten.smooth_l1_loss.default": _comparing(2),
    "aten.smooth_l1_loss_backward.default": _comparing_backward(3),
}
