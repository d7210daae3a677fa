"""What is the gradient of a number that fills the places of a mask? Eager sums what it picks out of the gradient.

How much that is the mask says, which cannot be asked while a step is traced; torch then sums the gradient with zeros
at all other places, which rounds otherwise. So where the number has a gradient, `filled` takes the place of
`torch.masked_fill`, and `filled_in_place` that of the method. The sum is an operator of its own, whose memory is that
of a mask that picks all, whatever the mask.

On a GPU, and under transforms of `torch.func`, it is torch's own.
"""

from typing import Any

import torch
from torch import Tensor

from outgrow.frontends.fake.eager.products import is_differentiated

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_masked_fill: Any = torch.masked_fill
_masked_fill_: Any = Tensor.masked_fill_


def _picked_sum(gradient: Tensor, mask: Tensor) -> Tensor:
    elements = torch.broadcast_shapes(gradient.shape, mask.shape).numel()
    room = gradient.new_empty(elements).resize_(0)  # it keeps its memory
    return torch.masked_select(gradient, mask, out=room).sum()


_LIBRARY.define("picked_sum(Tensor gradient, Tensor mask) -> Tensor")
_LIBRARY.impl("picked_sum", _picked_sum, "CompositeExplicitAutograd")
_LIBRARY.impl("picked_sum", lambda gradient, _mask: gradient.new_empty(()), "Meta")


def filled(input: Tensor, mask: Tensor, value: object) -> Tensor:  # noqa: A002 - as torch names it
    """Return what `torch.masked_fill` returns; the gradient of the value has the bits of eager when it is traced.

    >>> filled(torch.zeros(3), torch.tensor([True, False, True]), torch.tensor(2.0))
    tensor([2., 0., 2.])
    """
    return _by(_masked_fill, input, mask, value)


def filled_in_place(tensor: Tensor, mask: Tensor, value: object) -> Tensor:
    """Do what `Tensor.masked_fill_` does, with such a gradient."""
    return _by(_masked_fill_, tensor, mask, value)


def _by(fill: Any, tensor: Tensor, mask: Tensor, value: object) -> Tensor:
    if tensor.device.type != "cpu" or not is_differentiated(value):
        return fill(tensor, mask, value)
    return _Filled.apply(fill, tensor, mask, value)


class _Filled(torch.autograd.Function):
    """A tensor with a number at the places of a mask."""

    @staticmethod
    def forward(ctx: Any, fill: Any, tensor: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        if fill is _masked_fill_:
            ctx.mark_dirty(tensor)
        return fill(tensor, mask, value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None, Tensor]:
        (mask,) = ctx.saved_tensors
        (gradient,) = gradients
        others = gradient.masked_fill(mask, 0) if ctx.needs_input_grad[1] else None
        return None, others, None, sum_of_picked(gradient, mask)


def sum_of_picked(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of what a mask picks out of a tensor, with a gradient."""
    return _PickedSum.apply(tensor, mask)


class _PickedSum(torch.autograd.Function):
    """The sum of what a mask picks, which has a gradient where gradients are differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.shape = gradient.shape
        return torch.ops.outgrow.picked_sum(gradient, mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        (arriving,) = gradients
        return torch.where(mask, arriving.expand(ctx.shape), 0), None
