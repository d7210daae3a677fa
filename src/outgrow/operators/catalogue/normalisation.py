"""Operators that look at all of a dimension at once: normalisations and softmax. They are cut along the others."""

from collections.abc import Callable, Mapping
from math import prod

from outgrow.operators.catalogue.entry import Entry, all_of, asked, with_argument
from outgrow.operators.tdl import ALL, Element, OperatorCall, OperatorResult, Place, Sum, applied, indices, numbered

b, c = indices("b c")


def softmax(call: OperatorCall) -> list[OperatorResult | None]:
    """Along one dimension each element depends on all; the gradient on those of two operands."""
    x = call.operands[0]
    at = all_of(call.arguments[len(call.operands)], len(x.shape))
    return [OperatorResult.at(at, applied(*(operand[at] for operand in call.operands)))]


def layer_norm(call: OperatorCall) -> list[OperatorResult | None]:
    """Over the last dimensions; mean and spread are results, too."""
    x, *scales = call.operands
    i = numbered("i", len(x.shape) - _normalised(call, 1))
    inner = (ALL,) * _normalised(call, 1)
    value = applied(x[*i, *inner], *(scale[inner] for scale in scales))
    of_each = OperatorResult.at((*i, *(0 for _ in inner)), applied(x[*i, *inner]))
    return [OperatorResult.at((*i, *inner), value), of_each, of_each]


def layer_norm_backward(call: OperatorCall) -> list[OperatorResult | None]:
    """The gradients of the input, and of weight and bias, which are sums over all that was normalised alike."""
    y, x, mean, spread, *scales = call.operands
    i = numbered("i", len(x.shape) - _normalised(call, 2))
    inner = (ALL,) * _normalised(call, 2)
    at_one = (0,) * len(inner)
    read = applied(y[*i, *inner], x[*i, *inner], mean[*i, *at_one], spread[*i, *at_one])
    of_input = OperatorResult.at((*i, *inner), applied(read, *(scale[inner] for scale in scales)))
    of_scale = OperatorResult.at(inner, Sum(i, applied(read, *(scale[inner] for scale in scales))))
    results = (of_input, of_scale, of_scale)
    return asked(call, results)


def _normalised(call: OperatorCall, position: int) -> int:
    sizes = call.arguments[position]
    assert isinstance(sizes, tuple), "the sizes of the dimensions that are normalised"
    return len(sizes)


def group_norm(call: OperatorCall) -> list[OperatorResult | None]:
    """Over groups of channels and all of space."""
    x, *scales = call.operands
    inner = (ALL,) * (len(x.shape) - 1)
    of_each = OperatorResult.at((b, ALL), applied(x[b, *inner]))
    return [OperatorResult.at((b, *inner), applied(x[b, *inner], *(scale[ALL] for scale in scales))), of_each, of_each]


def group_norm_backward(call: OperatorCall) -> list[OperatorResult | None]:
    """The gradients of the input, and of weight and bias, which are sums over the batch."""
    y, x, mean, spread, *scales = call.operands
    inner = (ALL,) * (len(x.shape) - 1)
    read = applied(y[b, *inner], x[b, *inner], mean[b, ALL], spread[b, ALL], *(scale[ALL] for scale in scales))
    of_scale = OperatorResult.at((ALL,), Sum((b,), read))
    results = (OperatorResult.at((b, *inner), read), of_scale, of_scale)
    return asked(call, results)


def _of_local_sizes(position: int) -> Callable[[OperatorCall, str], OperatorCall]:
    """Return how a part of a group norm is called: with its own batch, channels, and places in space."""

    def adapt(call: OperatorCall, _cut: str) -> OperatorCall:
        batch, channels, *space = call.operands[position].shape
        found = call
        first = next(at for at, argument in enumerate(call.arguments) if isinstance(argument, int))
        for at, size in enumerate((batch, channels, prod(space))):
            found = with_argument(found, first + at, size)
        return found

    return adapt


def batch_norm(call: OperatorCall) -> list[OperatorResult | None]:
    """Over the batch and all of space, for each channel; mean and spread are results, too, empty where not taken."""
    x, *scales = call.operands
    around = (ALL, c, *(ALL,) * (len(x.shape) - 2))
    value = applied(x[around], *(scale[c] for scale in scales))
    taken = [OperatorResult.at((c,) if shape == x.shape[1:2] else (ALL,), value) for shape in call.shapes[1:]]
    return [OperatorResult.at(around, value), *taken]


def batch_norm_backward(call: OperatorCall) -> list[OperatorResult | None]:
    """The gradients of the input, of weight and bias, channel by channel."""
    y, x, *scales = call.operands
    around = (ALL, c, *(ALL,) * (len(x.shape) - 2))
    value = applied(y[around], x[around], *(scale[c] for scale in scales))
    results = (OperatorResult.at(around, value), OperatorResult.at((c,), value), OperatorResult.at((c,), value))
    return asked(call, results)


def sums_of_channels(call: OperatorCall) -> list[OperatorResult | None]:
    """Sums over the batch and all of space, of tensors of images and of channels (`frontends.workers.batch_norms`)."""
    at = _of_images(call)
    found = OperatorResult.at((c,), Sum((at[0], *at[2:]), applied(*_read(call, at))))
    return [found for _ in call.shapes]


def of_channels(call: OperatorCall) -> list[OperatorResult | None]:
    """Each element, from those at its place and what belongs to its channel; other results, from the last operand."""
    at = _of_images(call)
    found = OperatorResult.at(at, applied(*_read(call, at)))
    return [found, *(OperatorResult.at((c,), applied(call.operands[-1][c])) for _ in call.shapes[1:])]


def _of_images(call: OperatorCall) -> tuple[Place, ...]:
    i = numbered("i", len(call.operands[0].shape))
    return (i[0], c, *i[2:])


def _read(call: OperatorCall, at: tuple[Place, ...]) -> list[Element]:
    return [operand[at] if len(operand.shape) == len(at) else operand[c] for operand in call.operands]


ENTRIES: Mapping[str, Entry] = {
    "outgrow.centred_squares.default": Entry(sums_of_channels),
    "outgrow.batch_norm_sums.default": Entry(sums_of_channels),
    "outgrow.batch_normalised.default": Entry(of_channels),
    "outgrow.batch_norm_gradient.default": Entry(of_channels),
    "aten._softmax.default": Entry(softmax),
    "aten._log_softmax.default": Entry(softmax),
    "aten._softmax_backward_data.default": Entry(softmax),
    "aten._log_softmax_backward_data.default": Entry(softmax),
    "aten.native_layer_norm.default": Entry(layer_norm),
    "aten.native_layer_norm_backward.default": Entry(layer_norm_backward),
    "aten.native_group_norm.default": Entry(group_norm, _of_local_sizes(0)),
    "aten.native_group_norm_backward.default": Entry(group_norm_backward, _of_local_sizes(1)),
    "aten.native_batch_norm.default": Entry(batch_norm),
    "aten.native_batch_norm_backward.default": Entry(batch_norm_backward),
}
