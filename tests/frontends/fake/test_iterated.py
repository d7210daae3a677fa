"""Results of two operands, one of them broadcast: abstract ones lie as those of kernels, in each precision."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload

from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.fake.iterated import ITERATED


def layouts(dtype: torch.dtype) -> Iterator[Tensor]:
    """Operands of (2, 4, 6): contiguous, the last first, in reverse, repeated in three ways, and smaller ones."""
    yield torch.ones(2, 4, 6, dtype=dtype)
    yield torch.ones(2, 6, 4, dtype=dtype).mT
    yield torch.ones(6, 4, 2, dtype=dtype).permute(2, 1, 0)
    yield from (torch.ones(size, dtype=dtype).expand(2, 4, 6) for size in ((2, 4, 1), (2, 1, 6), (1, 4, 1)))
    yield torch.ones(4, 1, dtype=dtype)
    yield torch.ones((), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operator", sorted(ITERATED, key=str), ids=str)
def test_results_lie_as_kernels_lay_them(operator: OpOverload, dtype: torch.dtype) -> None:
    """Whichever operand is broadcast, and however the other one lies; a gradient is as large as what it is of."""
    mode, of_one_shape = FakeMode(), "backward" in str(operator)
    for one, other in product(layouts(dtype), layouts(dtype)):
        if of_one_shape and one.shape != other.shape:
            continue
        with mode:
            found = operator(mode.from_tensor(one), mode.from_tensor(other))
        assert found.stride() == operator(one, other).stride(), (one.stride(), other.stride())
