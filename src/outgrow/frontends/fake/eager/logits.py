"""What is the gradient of a binary cross entropy of logits, where targets or weights are of other types? It is rounded.

Eager mode computes it in place, in the type of the logits, or of the targets if positive ones are weighed. While a step
is traced torch makes a tensor anew at each operation, of the type of both operands together, and rounds once, at the
end. So `logits_loss` takes the place of torch's function then, with a gradient in place:

    without pos_weight  (sigmoid - target) * gradient * weight / elements
    with pos_weight     t = pos_weight * target; ((t + 1 - target) * sigmoid - t) * gradient * weight / elements

Where gradients are differentiated, eager makes tensors anew as well. Of operands of one type it is torch's own, and of
targets that have a gradient themselves, where autocast makes it of one type, and under transforms of `torch.func`.
"""

from typing import Any

import torch
from torch import Tensor

from outgrow.frontends.fake.eager.products import is_differentiated
from outgrow.frontends.fake.eager.uncast import is_cast

_loss: Any = torch.binary_cross_entropy_with_logits
_NAME, _MEAN = "aten::binary_cross_entropy_with_logits", 1


def logits_loss(
    input: Tensor,  # noqa: A002 - as torch names it
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Return what `torch.binary_cross_entropy_with_logits` returns; its gradient has the bits of eager when traced."""
    others = [item for item in (target, weight, pos_weight) if item is not None]
    is_of_one_type = all(item.dtype is input.dtype for item in others) or is_cast(_NAME, input.device.type)
    if is_of_one_type or not is_differentiated(input) or any(item.requires_grad for item in others):
        return _loss(input, target, weight, pos_weight, reduction)
    return _LogitsLoss.apply(input, target, weight, pos_weight, reduction)


class _LogitsLoss(torch.autograd.Function):
    """A loss of logits, whose gradient is computed in place unless it is itself differentiated."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, *others: Any) -> Tensor:
        weight, pos_weight, ctx.reduction = others
        ctx.save_for_backward(logits, target, weight, pos_weight)
        return _loss(logits, target, weight, pos_weight, ctx.reduction)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, target, weight, pos_weight = ctx.saved_tensors
        (gradient,) = gradients
        is_apart = torch.is_grad_enabled()
        minus: Any = torch.sub if is_apart else Tensor.sub_
        times: Any = torch.mul if is_apart else Tensor.mul_
        if pos_weight is None:
            found = minus(logits.sigmoid(), target)
        else:
            weighed = pos_weight * target
            found = minus(times(minus(weighed + 1, target), logits.sigmoid()), weighed)
        found = times(found, gradient)
        if weight is not None:
            found = times(found, weight)
        if ctx.reduction == _MEAN:
            found = found / logits.numel()
        return found.to(logits.dtype), None, None, None, None
