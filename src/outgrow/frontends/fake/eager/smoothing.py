"""By what is a smoothed cross entropy of weighted classes divided? By the sum of the weights of all targets that count.

Eager mode picks these targets out before it sums. Which they are is a content, so while a step is traced torch sums
zeros in the place of the others, which rounds otherwise. So `cross_entropy_loss` takes the place of torch's operator,
and sums by one that picks (`frontends.fake.eager.fills`); the rest is torch's own formula:

    smooth   = the sum over classes of -weight * log_softmax, and 0 where the target is ignored
    loss     = label_smoothing / classes * (sum of smooth) / (sum of weights) + (1 - label_smoothing) * nll_loss

It is for means of classes by their numbers, with weights; all else, what is on a GPU, and what is under transforms of
`torch.func`, is torch's own.
"""

from typing import Any

import torch
from torch import Tensor

from outgrow.frontends.fake.eager.fills import sum_of_picked
from outgrow.frontends.fake.eager.labels import OPERATORS, widened
from outgrow.frontends.fake.eager.products import is_transformed
from outgrow.frontends.fake.eager.uncast import is_cast

_loss: Any = OPERATORS.cross_entropy_loss
_MEAN = 1


def cross_entropy_loss(
    input: Tensor,  # noqa: A002 - as torch names it
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return what torch's operator of this name returns; traced, with the bits of eager."""
    target = widened(input, target)
    is_picked = label_smoothing > 0.0 and reduction == _MEAN and not target.is_floating_point()
    if weight is None or not is_picked or input.device.type != "cpu" or is_transformed():
        return _loss(input, target, weight, reduction, ignore_index, label_smoothing)
    if not is_cast("aten::cross_entropy_loss", "cpu"):
        return _smoothed(input, target, weight, ignore_index, label_smoothing)
    with torch.autocast("cpu", enabled=False):
        scores, weights = (item if item.dtype is torch.float64 else item.float() for item in (input, weight))
        return _smoothed(scores, target, weights, ignore_index, label_smoothing)


def _smoothed(scores: Tensor, target: Tensor, weight: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    dim = 0 if scores.dim() == 1 else 1
    logarithms = torch.log_softmax(scores, dim, scores.dtype)
    hard = torch.ops.aten.nll_loss_nd(logarithms, target, weight, _MEAN, ignore_index)
    shape = [1] * logarithms.dim()
    shape[dim] = weight.shape[0]
    smooth = -(logarithms * weight.view(shape)).sum(dim)
    is_ignored = target == ignore_index
    smooth.masked_fill_(is_ignored, 0.0)
    weights = weight.gather(0, target.masked_fill(is_ignored, 0).flatten())
    soft = smooth.sum() / sum_of_picked(weights, ~is_ignored.flatten())
    return label_smoothing / logarithms.shape[dim] * soft + (1 - label_smoothing) * hard
