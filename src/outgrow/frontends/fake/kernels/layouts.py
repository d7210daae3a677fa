"""Which strides does a kernel give its result, where its abstract implementation says others?

Strides of a dimension of size 1 say nothing about bytes, but operators read the memory format off them: one odd stride,
and `torch.cat` takes a channels-last volume for a contiguous one. Some abstract implementations (native_group_norm of
torch 2.11 to 2.13) return odd strides where every kernel returns those of `torch.empty`. A fresh result that is
channels-last except in dimensions of size 1 is given the strides of `torch.empty(..., memory_format=channels_last)`.

Some kernels return contiguous results where their abstract implementations keep the operand's permutation
(`as_kernels_lay_out`); batch normalisation keeps channels-last and nothing else. Some, such as those of padding, keep
what their abstract implementations drop; torch 2.14 drops it for group normalisation, too. For some of them a GPU has
other kernels, with other layouts. Where a part is put into a tensor that repeats numbers, such as the gradient of a
sum, kernels write them all out; abstract torch 2.11 goes on repeating them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from outgrow.ir.layout import dense_strides

_CONTIGUOUS = (
    torch.ops.aten._log_softmax_backward_data.default,
    torch.ops.aten.native_layer_norm_backward.default,
    torch.ops.aten.rrelu_with_noise.default,
    torch.ops.aten.normal.Tensor_Tensor,
    torch.ops.aten.normal.float_Tensor,
    torch.ops.aten.normal.Tensor_float,
    torch.ops.aten.glu_backward.default,
    torch.ops.aten.grid_sampler_2d.default,
)
_MADE_LIKE_FIRST = (torch.ops.aten.index_fill.int_Scalar, torch.ops.aten.index_fill.int_Tensor)
"""Operators whose result is an `empty_like` of their first operand."""
_FORMED_ON_A_CPU = {
    torch.ops.aten.channel_shuffle.default: 0,
    torch.ops.aten.roll.default: 0,
    torch.ops.aten.max_unpool2d.default: 0,
    torch.ops.aten.native_group_norm.default: 0,
    torch.ops.aten.native_group_norm_backward.default: 1,
    torch.ops.aten.reflection_pad2d.default: 0,
    torch.ops.aten.reflection_pad2d_backward.default: 1,
    torch.ops.aten.replication_pad2d.default: 0,
    torch.ops.aten.replication_pad2d_backward.default: 1,
    torch.ops.aten.reflection_pad3d.default: 0,
    torch.ops.aten.reflection_pad3d_backward.default: 1,
    torch.ops.aten.replication_pad3d.default: 0,
    torch.ops.aten.replication_pad3d_backward.default: 1,
}
_FORMED_ON_A_GPU = {
    torch.ops.aten.upsample_bilinear2d.default: 0,
    torch.ops.aten.upsample_trilinear3d.default: 0,
}
"""Operators whose result has the memory format of this operand there; on the other, torch knows better."""
_GROUP_NORM_BACKWARD = torch.ops.aten.native_group_norm_backward.default
"""A CPU's result is contiguous where the operand has no memory format; abstract torch 2.14 goes by the gradient."""
_BATCH_NORM_BACKWARD, _IS_TRAINING = torch.ops.aten.native_batch_norm_backward.default, 7
"""Where it is told whether it is one of training: if not, a GPU's result is contiguous; a CPU's is like the input."""
_BATCH_NORM = torch.ops.aten.native_batch_norm.default
"""A GPU's kernel keeps the operand's permutation."""
_BY_FORMAT = (
    _BATCH_NORM,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit_functional.default,
    _BATCH_NORM_BACKWARD,
)
_SCATTERED = (
    torch.ops.aten.slice_scatter.default,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
)
LAID_OUT = frozenset((*_CONTIGUOUS, *_MADE_LIKE_FIRST, *_FORMED_ON_A_CPU, *_FORMED_ON_A_GPU, *_BY_FORMAT, *_SCATTERED))
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The memory formats beside the contiguous one, by the number of dimensions."""


def like_a_kernel(fake: Tensor) -> Tensor:
    """Return the fresh fake tensor with the strides that a kernel would have given it; often itself."""
    if fake.dim() not in FORMATS or 1 not in fake.shape or fake.is_contiguous():
        return fake
    strides = channels_last_strides(tuple(fake.shape))
    pairs = zip(fake.shape, fake.stride(), strides, strict=True)
    if any(size > 1 and found != usual for size, found, usual in pairs):
        return fake
    return relaid(fake, strides)


def relaid(fake: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a fresh fake tensor with these strides; itself if it has them."""
    if fake.stride() == strides:
        return fake
    return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=fake.device)


def without_memory(like: Tensor, dtype: torch.dtype) -> Any:
    """Return a tensor that lies like another one, to ask torch for strides; of no class that its types know."""
    return torch.empty_strided(like.shape, like.stride(), dtype=dtype, device="meta")


def as_kernels_lay_out(func: OpOverload, args: Sequence[object], returned: object) -> object:
    """Return the fake results of `func`, one of `LAID_OUT`, as its kernel lays them out."""
    first, *others = returned if isinstance(returned, Sequence) else (returned,)
    if not isinstance(first, Tensor):
        return returned
    is_on_cpu = first.device.type == "cpu"
    if func in _MADE_LIKE_FIRST:
        assert isinstance(args[0], Tensor), "what is filled is a tensor"
        return torch.empty_like(args[0])
    if func in _FORMED_ON_A_CPU or func in _FORMED_ON_A_GPU:
        position = (_FORMED_ON_A_CPU if is_on_cpu else _FORMED_ON_A_GPU).get(func)
        otherwise = _contiguous(first) if func is _GROUP_NORM_BACKWARD and is_on_cpu else first
        formed = first if position is None else _formed(args[position], otherwise)
        return (formed, *others) if isinstance(returned, Sequence) else formed
    if func is _BATCH_NORM and not is_on_cpu:
        return returned
    if func is _BATCH_NORM_BACKWARD and is_on_cpu:
        return (_suggested(args[1], first), *others)
    if func is _BATCH_NORM_BACKWARD and not args[_IS_TRAINING]:
        return (_contiguous(first), *others)
    if func in _SCATTERED:
        return torch.empty_like(first) if repeats(first) else returned
    if func in _BY_FORMAT and first.dim() in FORMATS and first.is_contiguous(memory_format=FORMATS[first.dim()]):
        return returned
    results = tuple([_contiguous(item) if isinstance(item, Tensor) else item for item in (first, *others)])
    return results if isinstance(returned, Sequence) else results[0]


def _contiguous(fake: Tensor) -> Tensor:
    """Return a contiguous result in place of a fresh one; itself if it is that."""
    return fake if fake.is_contiguous() else torch.empty(fake.shape, dtype=fake.dtype, device=fake.device)


def _formed(operand: object, returned: Tensor) -> Tensor:
    """Return a result in the memory format of an operand."""
    assert isinstance(operand, Tensor), "the position is that of a tensor"
    kind = FORMATS.get(operand.dim(), torch.contiguous_format)
    if operand.is_contiguous():
        return _contiguous(returned)
    if not operand.is_contiguous(memory_format=kind):
        return returned
    return torch.empty(returned.shape, dtype=returned.dtype, device=returned.device, memory_format=kind)


def _suggested(operand: object, returned: Tensor) -> Tensor:
    """Return a result in the memory format that the strides of an operand suggest, be it a part of a larger tensor."""
    assert isinstance(operand, Tensor), "the position is that of a tensor"
    kind = torch.contiguous_format if operand.is_contiguous() else suggest_memory_format(operand)
    return torch.empty(returned.shape, dtype=returned.dtype, device=returned.device, memory_format=kind)


def repeats(tensor: Tensor) -> bool:
    """Whether some of a tensor's numbers are the same ones in memory, along a dimension."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense channels-last tensor: batch, places from first to last, channel innermost.

    >>> channels_last_strides((1, 16, 4, 4, 4))
    (1024, 1, 256, 64, 16)
    """
    return dense_strides(shape, (0, *range(2, len(shape)), 1))
