"""Which strides does a kernel give to a dimension of size 1?

Strides of such a dimension say nothing about bytes, but operators read the memory format off them: one odd stride, and
`torch.cat` takes a channels-last volume for a contiguous one. Some abstract implementations (native_group_norm of
torch 2.11 to 2.13) return odd strides where every kernel returns those of `torch.empty`. A fresh result that is
channels-last except in dimensions of size 1 is given the strides of `torch.empty(..., memory_format=channels_last)`.

Some kernels return contiguous results where their abstract implementations keep the operand's permutation
(`as_kernels_lay_out`); batch normalisation keeps channels-last and nothing else. Where a part is put into a tensor that
repeats numbers, such as the gradient of a sum, kernels write them all out; abstract torch 2.11 goes on repeating them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

_CONTIGUOUS = (torch.ops.aten.mse_loss_backward.default, torch.ops.aten.native_layer_norm_backward.default)
_BY_FORMAT = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.native_batch_norm_backward.default)
_SCATTERED = (
    torch.ops.aten.slice_scatter.default,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
)
LAID_OUT = frozenset((*_CONTIGUOUS, *_BY_FORMAT, *_SCATTERED))
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


def as_kernels_lay_out(func: OpOverload, _args: Sequence[object], returned: object) -> object:
    """Return the fake results of `func`, one of `LAID_OUT`, with the first as its kernel lays it out."""
    first, *others = returned if isinstance(returned, Sequence) else (returned,)
    if not isinstance(first, Tensor) or first.is_contiguous():
        return returned
    if func in _BY_FORMAT and first.dim() in _FORMATS and first.is_contiguous(memory_format=_FORMATS[first.dim()]):
        return returned
    if func in _SCATTERED:
        return torch.empty_like(first) if _repeats(first) else returned
    laid_out = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    return (laid_out, *others) if isinstance(returned, Sequence) else laid_out


def _repeats(tensor: Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


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
