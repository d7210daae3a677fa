"""Results of two operands, one of them broadcast: abstract ones lie as those of kernels, in each precision."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload

from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.fake.iterated import ITERATED

BOTH = (torch.float32, torch.bfloat16)
MODES = {torch.ops.aten.div.Tensor_mode: {"rounding_mode": "floor"}}
TYPES = {operator: [torch.float32] for operator in (torch.ops.aten.complex.default, torch.ops.aten.polar.default)}
CASES = [(operator, dtype) for operator in sorted(ITERATED, key=str) for dtype in TYPES.get(operator, BOTH)]
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
def test_results_lie_as_kernels_lay_them(operator: OpOverload, dtype: torch.dtype) -> None:
    """Whichever operand is broadcast, and however the other one lies; a gradient is as large as what it is of."""
    mode, of_one_shape, named = FakeMode(), "backward" in str(operator), MODES.get(operator, {})
    for one, other in product(layouts(dtype), layouts(dtype)):
        if of_one_shape and one.shape != other.shape:
            continue
        with mode:
            found = operator(mode.from_tensor(one), mode.from_tensor(other), **named)
        assert found.stride() == operator(one, other, **named).stride(), (one.stride(), other.stride())
