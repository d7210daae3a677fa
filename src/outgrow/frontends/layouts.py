"""Which strides does a kernel give to a dimension of size 1?

Strides of such a dimension say nothing about bytes, but operators read the memory format off them: one odd stride, and
`torch.cat` takes a channels-last volume for a contiguous one. Some abstract implementations (native_group_norm of
torch 2.11 to 2.13) return odd strides where every kernel returns those of `torch.empty`. A fresh result that is
channels-last but for dimensions of size 1 is given the strides of `torch.empty(..., memory_format=channels_last)`.
"""

import torch
from torch import Tensor

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def like_a_kernel(fake: Tensor) -> Tensor:
    """Return the fresh fake tensor with the strides that a kernel would have given it; often itself."""
    if fake.dim() not in _FORMATS or 1 not in fake.shape or fake.is_contiguous():
        return fake
    strides = channels_last_strides(tuple(fake.shape))
    pairs = zip(fake.shape, fake.stride(), strides, strict=True)
    if fake.stride() == strides or any(size > 1 and found != usual for size, found, usual in pairs):
        return fake
    return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=fake.device)


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense channels-last tensor: batch, places from first to last, channel innermost.

    >>> channels_last_strides((1, 16, 4, 4, 4))
    (1024, 1, 256, 64, 16)
    """
    strides = [0] * len(shape)
    stride = 1
    for dimension in (1, *range(len(shape) - 1, 1, -1), 0):
        strides[dimension] = stride
        stride *= shape[dimension]
    return tuple(strides)
