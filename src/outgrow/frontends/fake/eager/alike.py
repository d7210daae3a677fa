"""Are two tensors alike? Torch asks a kernel for a truth value; here it is a tensor's, by which a step may decide.

What `torch.allclose` finds is what `torch.isclose` finds everywhere, by its definition. Of a tensor and itself, or
another view of the same memory, `torch.equal` may look at no element, so that NaN is no matter: that is left to torch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from outgrow.frontends.user.training.sharing import place


def _equal(input: Tensor, other: Tensor) -> bool:  # noqa: A002 - torch's name, by which it may be given
    if input.dtype is not other.dtype or input.device != other.device or place(input) == place(other):
        return torch.equal(input, other)
    return input.shape == other.shape and bool((input == other).all())


def _allclose(input: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> bool:  # noqa: A002 - for the same reason
    return bool(torch.isclose(input.detach(), other.detach(), *args, **kwargs).all())


ALIKE: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.equal: _equal,
    Tensor.equal: _equal,
    torch.allclose: _allclose,
    Tensor.allclose: _allclose,
}
"""Functions of torch, and what is called in their place."""
