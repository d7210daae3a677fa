"""What is the gradient of a product of elements? In eager mode it depends on whether there is a zero among them.

    none            gradient * result / factor
    one and more    gradient * the product of all other factors, from products of those before and of those behind
    more, of all    zeros, where all elements of a tensor are multiplied, and the gradient is not itself differentiated

Torch looks at the factors to know; while it is traced it cannot, and takes the second way always, which rounds
otherwise. So `product` takes the place of `torch.prod` then: its gradient is computed both ways, and the one that
eager has is chosen by a tensor. Both may be differentiated again, so neither divides by zero: what is not chosen would
make NaN of that. Under transforms of `torch.func` it is torch's own.
"""

from typing import Any

import torch
from torch import Tensor

_prod: Any = torch.prod


def product(*args: Any, **options: Any) -> Tensor:
    """Return what `torch.prod` returns, called as that is; its gradient has the bits of eager when it is traced.

    >>> product(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), -1)
    tensor([ 2., 12.])
    """
    tensor, dim, keepdim, dtype = _arguments(*args, **options)
    return _Product.apply(tensor, dim, keepdim, dtype) if is_differentiated(tensor) else _prod(*args, **options)


def is_differentiated(argument: object) -> bool:
    """Whether autograd gives an argument a gradient, with no transform of `torch.func` around it."""
    is_wanted = isinstance(argument, Tensor) and argument.requires_grad and torch.is_grad_enabled()
    return is_wanted and not is_transformed()


def is_transformed() -> bool:
    """Whether there is a transform of `torch.func` around."""
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore[reportAttributeAccessIssue]


def _arguments(
    input: Tensor,  # noqa: A002 - as torch names it
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,  # noqa: ARG001 - torch refuses it where a gradient is wanted
) -> tuple[Tensor, int | None, bool, torch.dtype | None]:
    return input, dim, keepdim, dtype


class _Product(torch.autograd.Function):
    """A product along a dimension, or of all elements where that is None."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
        along = () if dim is None else (dim, keepdim)
        result = _prod(tensor, *along, dtype=dtype)
        ctx.save_for_backward(tensor, result)
        ctx.along = along
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        tensor, result = ctx.saved_tensors
        (gradient,) = gradients
        factors = tensor.to(gradient.dtype)
        if not factors.dim():
            return gradient.clone(), None, None, None
        if ctx.along:
            dim, keepdim = ctx.along
            if not keepdim:
                gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
            others = gradient * _of_all_others(factors, dim)
        else:
            flat = factors.contiguous().view(-1)
            others = (gradient * _of_all_others(flat, 0)).view_as(factors)
            if not torch.is_grad_enabled():
                others = torch.where((flat == 0).sum() > 1, torch.zeros_like(factors), others)
        divisors = torch.where(factors == 0, 1, factors)
        found = torch.where((factors != 0).all(), gradient * (result / divisors).conj(), others)
        return found.to(tensor.dtype), None, None, None


def _of_all_others(factors: Tensor, dim: int) -> Tensor:
    """Return for each factor the conjugate product of all others along a dimension."""
    if factors.shape[dim] <= 1:
        return torch.ones_like(factors)
    ones = torch.ones_like(factors.narrow(dim, 0, 1))
    count = factors.shape[dim] - 1
    before = torch.cat([ones, factors.narrow(dim, 0, count)], dim).cumprod(dim)
    behind = torch.cat([ones, factors.narrow(dim, 1, count).flip(dim)], dim).cumprod(dim).flip(dim)
    return (before * behind).conj()
