"""How does a Fourier transform lie? By the strides of what is transformed.

A kernel goes through the dimensions that are not transformed in the order of their strides, the largest first, and
through those that are in the order of theirs, and writes its result densely in that order. The dimension that is halved
comes last. MKL transforms all dimensions at once, cuFFT three at a time; where there is no MKL, results on a CPU are
contiguous. The abstract implementations of torch 2.11 forget some of this, and fail for maps that are not square. For a
GPU only transforms from complex to complex are made here: of others torch knows enough.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from outgrow.ir.layout import contiguous_strides, dense_strides

_REAL_TO_COMPLEX = torch.ops.aten._fft_r2c.default
_COMPLEX = torch.ops.aten._fft_c2c.default
_COMPLEX_TO_REAL = torch.ops.aten._fft_c2r.default
TRANSFORMS = frozenset((_REAL_TO_COMPLEX, _COMPLEX, _COMPLEX_TO_REAL))
_MOST_OF_CUFFT = 3
"""So many dimensions it transforms at once."""


def transformed(func: OpOverload, args: Sequence[Any]) -> Tensor | None:
    """Return the fake result of `func`, one of `TRANSFORMS`, as its kernel gives it; None where torch knows."""
    operand, over, _, last = args
    if not isinstance(operand, FakeTensor) or not over:
        return None
    is_on_cpu, dims = operand.device.type == "cpu", [dim % operand.dim() for dim in over]
    if not is_on_cpu and func is not _COMPLEX:
        return None
    shape, dtype = list(operand.shape), operand.dtype
    if func is _REAL_TO_COMPLEX:
        dtype = dtype.to_complex()
        if last:  # only one side of the spectrum
            shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    elif func is _COMPLEX_TO_REAL:
        dtype = dtype.to_real()
        shape[dims[-1]] = last
    is_contiguous = is_on_cpu and not torch.backends.mkl.is_available()
    strides = contiguous_strides(tuple(shape)) if is_contiguous else _strides(func, operand, dims, shape)
    return torch.empty_strided(shape, strides, dtype=dtype, device=operand.device)


def _strides(func: OpOverload, operand: Tensor, dims: list[int], shape: Sequence[int]) -> tuple[int, ...]:
    strides, halved = operand.stride(), dims[-1:]
    if func is _REAL_TO_COMPLEX:
        return _written(strides, shape, [*_by_stride(strides, dims[:-1]), *halved])
    at_once = len(dims) if operand.device.type == "cpu" else _MOST_OF_CUFFT
    left = dims if func is _COMPLEX else dims[:-1]
    while left:
        left = _by_stride(strides, left)
        strides = _written(strides, operand.shape, left[-at_once:])
        left = left[:-at_once]
    return strides if func is _COMPLEX else _written(strides, shape, halved)


def _written(strides: Sequence[int], shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a result of this shape, transformed over these dimensions, the innermost last."""
    return dense_strides(shape, [*_by_stride(strides, _left(len(shape), dims)), *dims])


def _left(count: int, dims: Sequence[int]) -> list[int]:
    """Return the other dimensions as C++'s `std::partition` leaves them, which counts where strides are equal.

    >>> _left(4, [0])
    [3, 1, 2]
    """
    found = list(range(count))
    first, last = 0, count - 1
    while True:
        while first < count and found[first] not in dims:
            first += 1
        while last >= 0 and found[last] in dims:
            last -= 1
        if first >= last:
            return found[: last + 1]
        found[first], found[last] = found[last], found[first]
        first, last = first + 1, last - 1


def _by_stride(strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda dim: strides[dim], reverse=True)
