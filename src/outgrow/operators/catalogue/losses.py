"""The loss of classes: minus the logarithm of what the right class got, of one example or of each place in an image.

A mean is computed as the sum of the losses and the sum of their weights, which are partial, and divided in the end
(`Entry.quotient`).
"""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry, with_argument
from outgrow.operators.tdl import ALL, All, Call, Place, Result, Sum, applied, numbered

_NONE, _MEAN, _SUM = 0, 1, 2
"""The codes of reductions."""


def nll_loss(call: Call) -> list[Result | None]:
    """The losses, or their sum, and the sum of their weights."""
    x, target, *weight = call.operands
    reduction = call.arguments[3]
    at, read = _places(len(x.shape))
    value = applied(x[read], target[at], *(item[ALL] for item in weight))
    total = Sum(at, value)
    return [Result.at(at, value) if reduction == _NONE else Result.at((), total), Result.at((), total)]


def nll_loss_backward(call: Call) -> list[Result | None]:
    """The gradient of the logarithms, from that of the loss, the classes and the sum of weights."""
    y, x, target, *weights, total = call.operands
    at, read = _places(len(x.shape))
    parts = [y[at] if y.shape else y[()], x[read], target[at], *(item[ALL] for item in weights), total[()]]
    return [Result.at(read, applied(*parts))]


def _places(rank: int) -> tuple[tuple[Place, ...], tuple[Place | All, ...]]:
    """Return the place of an example, and that of all its classes."""
    batch, *space = numbered("i", rank - 1)
    return (batch, *space), (batch, ALL, *space)


def _as_sums(call: Call, _cut: str) -> Call:
    return with_argument(call, 3, _SUM) if call.arguments[3] == _MEAN else call


def _mean(call: Call) -> tuple[int, int] | None:
    return (0, 1) if call.arguments[3] == _MEAN else None


ENTRIES: Mapping[str, Entry] = {
    "aten.nll_loss_forward.default": Entry(nll_loss, _as_sums, quotient=_mean),
    "aten.nll_loss2d_forward.default": Entry(nll_loss, _as_sums, quotient=_mean),
    "aten.nll_loss_backward.default": Entry(nll_loss_backward),
    "aten.nll_loss2d_backward.default": Entry(nll_loss_backward),
}
