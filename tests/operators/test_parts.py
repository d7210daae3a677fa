"""The parts of a convolution's backward give the bits of the whole, without the operand that they do not need."""

from itertools import cycle, product

import pytest
import torch
from torch import Tensor

from outgrow.frontends.tracing.names import resolve_operator
from outgrow.ir.graph import Op, Ref
from outgrow.operators.layouts import CONVOLUTION_BACKWARD, MASK, layout_only
from outgrow.operators.parts import parts
from outgrow.runtime.memory import unread
from outgrow.runtime.program import Geometry
from tests.frontends.bits import same_bits

SIZES = {1: (57,), 2: (17, 23), 3: (7, 9, 10)}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
ADDRESSES = unread(1 << 26)
GEOMETRIES = tuple(product((1, 2), (1, 2), (1, 4), (False, True), (1, 3)))
"""Stride, dilation, groups, whether transposed, kernel size."""
BATCHES = (1, 5, 3)
BIASES = (True, False, False, True, False)
"""Both taken in turn."""


def operands(dimensions: int, dtype: torch.dtype, batch: int, geometry: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Input and weight."""
    _, _, groups, is_transposed, kernel = geometry
    channels = (8, 12 // groups) if is_transposed else (12, 8 // groups)
    x = torch.randn(batch, 8, *SIZES[dimensions]).to(dtype)
    return x, torch.randn(*channels, *([kernel] * dimensions)).to(dtype)


def assert_parts_give_the_bits_of_the_whole(x: Tensor, weight: Tensor, geometry: tuple[int, ...], bias: bool) -> None:
    """Each part returns its results of the whole, with a stand-in for what it does not need."""
    stride, dilation, groups, is_transposed, kernel = geometry
    count = x.dim() - 2
    window = ([stride] * count, [kernel // 2] * count, [dilation] * count, bool(is_transposed), [0] * count, groups)
    gradient = torch.randn_like(torch.ops.aten.convolution.default(x, weight, None, *window))
    given = (gradient, x, weight, [12] if bias else None, *window)
    function = resolve_operator(CONVOLUTION_BACKWARD)
    expected = function(*given, [True, True, bias])
    assert isinstance(expected, tuple)
    refs = (*(Ref(name) for name in "gxw"), *(None for _ in given[3:]), (True, True, bias))
    for part in parts(Op("op", CONVOLUTION_BACKWARD, refs, results=("x", "w", "b" if bias else None))):
        mask = part.arguments[MASK]
        assert isinstance(mask, tuple)
        stood_in = [_stand_in(item) if at in layout_only(part) else item for at, item in enumerate(given)]
        found = function(*stood_in, [*mask])
        assert isinstance(found, tuple)
        for asked, one, other in zip(mask, found, expected, strict=True):
            assert not asked or same_bits(one, other), (x.shape, x.stride(), weight.stride(), geometry, mask)


def _stand_in(item: object) -> Tensor:
    assert isinstance(item, Tensor)
    layout = Geometry("any", item.dtype, tuple(item.shape), item.stride(), int(item.storage_offset()))
    return layout.over(ADDRESSES)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dimensions", SIZES)
def test_parts_give_the_bits_of_the_whole(dimensions: int, dtype: torch.dtype) -> None:
    """For strides, dilations, groups, transposed ones, kernels of one and three, one sample and several."""
    torch.manual_seed(0)
    for geometry, batch, bias in zip(GEOMETRIES, cycle(BATCHES), cycle(BIASES), strict=False):
        x, weight = operands(dimensions, dtype, batch, geometry)
        assert_parts_give_the_bits_of_the_whole(x, weight, geometry, bias)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["both", "input alone"])
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dimensions", CHANNELS_LAST)
def test_parts_in_channels_last_give_the_bits_of_the_whole(dimensions: int, dtype: torch.dtype, is_mixed: bool) -> None:
    """The same where operands lie in channels-last, or only the input does and the library copies the weight."""
    torch.manual_seed(0)
    last = CHANNELS_LAST[dimensions]
    for geometry, batch in zip(GEOMETRIES, cycle(BATCHES), strict=False):
        x, weight = operands(dimensions, dtype, batch, geometry)
        weight = weight if is_mixed else weight.to(memory_format=last)
        assert_parts_give_the_bits_of_the_whole(x.to(memory_format=last), weight, geometry, bias=True)


@pytest.mark.parametrize("batch", [2, 32])
def test_parts_of_a_large_convolution_give_the_bits_of_the_whole(batch: int) -> None:
    """Sizes at which the library takes its blocked kernels and several threads."""
    torch.manual_seed(0)
    for last in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(batch, 64, 56, 56).to(memory_format=last)
        weight = torch.randn(12, 64, 3, 3).to(memory_format=last)
        assert_parts_give_the_bits_of_the_whole(x, weight, (1, 1, 1, False, 3), bias=True)
