"""Results that have a place for each of their operands' places lie as kernels lay them, whatever the operator."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outgrow.frontends.fake.fakes import FakeMode
from tests.frontends.fake.laid import said, strides
from tests.frontends.fake.test_iterated import layouts

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
