"""Results that have a place for each of their operands' places lie as kernels lay them, whatever the operator."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from outgrow.frontends.fake.fakes import FakeMode
from tests.frontends.fake.laid import said, strides

_aten = torch.ops.aten
ITERATED: tuple[OpOverload, ...] = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.pow.Tensor_Tensor),
    *(_aten.fmod.Tensor, _aten.remainder.Tensor, _aten.atan2.default, _aten.hypot.default, _aten.heaviside.default),
    *(_aten.maximum.default, _aten.minimum.default, _aten.fmax.default, _aten.fmin.default),
    *(_aten.clamp_max.Tensor, _aten.clamp_min.Tensor, _aten.logaddexp.default, _aten.logaddexp2.default),
    *(_aten.eq.Tensor, _aten.ne.Tensor, _aten.lt.Tensor, _aten.le.Tensor, _aten.gt.Tensor, _aten.ge.Tensor),
    *(_aten.logical_and.default, _aten.logical_or.default, _aten.logical_xor.default),
    *(_aten.div.Tensor_mode, _aten.floor_divide.default, _aten.copysign.Tensor, _aten.xlogy.Tensor),
    *(_aten.special_xlog1py.default, _aten.complex.default, _aten.polar.default),
    *(_aten.sigmoid_backward.default, _aten.tanh_backward.default),
    *(_aten.silu_backward.default, _aten.gelu_backward.default),
)
BOTH = (torch.float32, torch.bfloat16)
MODES = {torch.ops.aten.div.Tensor_mode: {"rounding_mode": "floor"}}
TYPES = {operator: [torch.float32] for operator in (torch.ops.aten.complex.default, torch.ops.aten.polar.default)}
CASES = [(operator, dtype) for operator in ITERATED for dtype in TYPES.get(operator, BOTH)]
"""Operators and the types they are tried in: complex numbers are made of fp32 alone."""


def layouts(dtype: torch.dtype) -> Iterator[Tensor]:
    """Operands of (2, 4, 6): contiguous, the last first, in reverse, repeated in three ways, and smaller ones."""
    yield torch.ones(2, 4, 6, dtype=dtype)
    yield torch.ones(2, 6, 4, dtype=dtype).mT
    yield torch.ones(6, 4, 2, dtype=dtype).permute(2, 1, 0)
    yield from (torch.ones(size, dtype=dtype).expand(2, 4, 6) for size in ((2, 4, 1), (2, 1, 6), (1, 4, 1)))
    yield torch.ones(4, 1, dtype=dtype)
    yield torch.ones((), dtype=dtype)


@pytest.mark.parametrize(("operator", "dtype"), CASES, ids=str)
def test_results_of_two_operands_lie_as_kernels_lay_them(operator: OpOverload, dtype: torch.dtype) -> None:
    """Whichever operand is broadcast, and however the other one lies; a gradient is as large as what it is of."""
    mode, of_one_shape, named = FakeMode(), "backward" in str(operator), MODES.get(operator, {})
    for one, other in product(layouts(dtype), layouts(dtype)):
        if of_one_shape and one.shape != other.shape:
            continue
        with mode:
            found = operator(mode.from_tensor(one), mode.from_tensor(other), **named)
        assert found.stride() == operator(one, other, **named).stride(), (one.stride(), other.stride())


Way: TypeAlias = Callable[[Tensor, Tensor], Tensor]
WAYS: dict[str, Way] = {
    "ldexp": torch.ldexp,
    "rsub": torch.rsub,
    "igamma": torch.igamma,
    "lerp": lambda x, y: torch.lerp(x, y, y),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "threshold": lambda x, _: F.threshold(x, 0.5, 0.0),
    "slope of a threshold": lambda x, y: torch.ops.aten.threshold_backward(x + 0 * y, y.expand(2, 4, 6), 0.5),
    "slope of a leak": lambda x, y: torch.ops.aten.leaky_relu_backward(x + 0 * y, y.expand(2, 4, 6), 0.1, False),
    "prelu": torch.ops.aten._prelu_kernel,
    "sums of what is no number": lambda x, y: x * torch.atleast_1d(x + y).nansum(-1, keepdim=True).isnan(),
    "several results": lambda x, y: torch.frexp(x + y)[1],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_results_lie_as_kernels_lay_them(way: Way, dtype: torch.dtype) -> None:
    """Whichever operand is broadcast or a part of something larger, and however the other one lies."""
    parts = [torch.ones(2, 6, 8, dtype=dtype)[..., ::2].mT, torch.ones(4, 2, 6, dtype=dtype).transpose(0, 1)]
    for one, other in product([*layouts(dtype), *parts], repeat=2):
        mode = FakeMode()
        with mode:
            found = way(mode.from_tensor(one), mode.from_tensor(other))
        assert found.stride() == way(one, other).stride(), (one.stride(), other.stride())


def test_windows_that_overlap_are_gone_through_by_their_sizes() -> None:
    """Two of their dimensions have one stride, of which that of a smaller tensor says nothing."""
    x, y, mode = torch.ones(8).as_strided((3, 6), (1, 1)), torch.ones(1, 6), FakeMode()
    with mode:
        found = mode.from_tensor(x) * mode.from_tensor(y)
    assert found.stride() == (x * y).stride()


@pytest.mark.parametrize(
    ("way", "shape", "one", "other"),
    [
        (torch.polar, (3, 3, 2, 1), (1, 6, 0, 3), (24, 1, 6, 144)),
        (torch.logaddexp, (2, 2, 2, 3, 1), (12, 1, 6, 0, 2), (1, 4, 16, 64, 384)),
    ],
)
def test_dimensions_of_one_place_have_strides_too(
    way: Way, shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    """Kernels sort by them, and in a smaller tensor they would be those of other dimensions."""
    x, y = (torch.ones(4096).as_strided(shape, strides) for strides in (one, other))
    mode = FakeMode()
    with mode:
        found = way(mode.from_tensor(x), mode.from_tensor(y))
    expected = way(x, y)
    several = [dimension for dimension, size in enumerate(shape) if size > 1]
    assert [found.stride(at) for at in several] == [expected.stride(at) for at in several]


def test_rows_that_are_filled_lie_as_their_copy() -> None:
    """That of a part of a matrix whose dimensions have changed places."""
    x, at = torch.ones(4, 8)[:, :6].mT, torch.tensor([0, 2])
    assert said(lambda x: x.index_fill(0, at * 1, 2.0), x, x) == strides(lambda x: x.index_fill(0, at, 2.0), x, x)


def test_operators_that_do_something_else_with_sizes_are_left_as_they_are() -> None:
    """Of smaller operands they would make other shapes, or raise an error."""
    x = torch.ones(4, 6).mT.contiguous().mT
    ways = (lambda x: F.pad(x, (-2, 2)), lambda x: x.mT[:4] @ x[:, :4], lambda x: x.roll(3, 1), lambda x: x.flip(0))
    for way in ways:
        assert said(way, x, way(x)) == strides(way, x, way(x))


@pytest.mark.parametrize("training", [True, False])
def test_slopes_at_random_leave_no_permutation(training: bool) -> None:
    """Their kernel makes its operand contiguous, also where one slope is taken."""
    x, way = torch.ones(4, 5, 6).mT, partial(F.rrelu, training=training)
    for form in (x, x[:1].expand(4, 6, 5)):
        assert said(way, form, form.clone()) == strides(way, form, form.clone())


def test_gradients_of_a_layer_normalisation_are_contiguous() -> None:
    """Those of weights as well, which are as large as a sample."""
    x, arriving = torch.ones(1, 4, 6), torch.ones(1, 6, 4).mT
    weight = torch.ones(4, 6, requires_grad=True)
    ways = [lambda x: F.layer_norm(x, (4, 6)), lambda w: F.layer_norm(x, (4, 6), w)]
    for way, operand in zip(ways, (x, weight), strict=True):
        assert said(way, operand, arriving) == strides(way, operand, arriving)
