"""What is the gradient of the largest element of a tensor? All of what arrives, in equal shares, where that element is.

On a CPU eager mode writes the share at these places into zeros. While a tensor is traced torch multiplies the share by
a mask of them, which makes NaN of an infinite share elsewhere, and may turn the sign of a zero. So `EXTREMES` take the
place of `torch.max`, `min`, `median` and `nanmedian` of all elements, with the gradient of eager.

On a GPU eager mode multiplies by the mask, and under transforms of `torch.func` it is torch's own, too.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from outgrow.frontends.fake.eager.products import is_differentiated


def _of_all(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns what one of torch does; of all elements its gradient has the bits of eager.

    >>> _of_all(torch.max)(torch.tensor([1.0, 3.0, 2.0]))
    tensor(3.)
    """

    @wraps(own)
    def called(*args: Any, **options: Any) -> Any:
        given = (*args, *options.values())
        if len(given) == 1 and is_differentiated(given[0]) and given[0].device.type == "cpu":
            return _Chosen.apply(own, *given)
        return own(*args, **options)

    return called


EXTREMES = {name: _of_all(getattr(torch, name)) for name in ("max", "min", "median", "nanmedian")}
"""What is called in the place of functions of torch, by their names."""


class _Chosen(torch.autograd.Function):
    """One of the elements of a tensor, all of which are looked at."""

    @staticmethod
    def forward(ctx: Any, own: Any, tensor: Tensor) -> Tensor:
        value = own(tensor)
        ctx.save_for_backward(tensor, value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        tensor, value = ctx.saved_tensors
        (gradient,) = gradients
        mask = torch.where(value.isnan(), tensor.isnan(), tensor == value)
        shares = tensor.new_zeros(tensor.shape)
        return None, shares.masked_fill_(mask, gradient / mask.sum())
