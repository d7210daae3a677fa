"""Fourier transforms: abstract ones lie as those of kernels."""

from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from outgrow.frontends.fake.fakes import FakeMode


def laid(dtype: torch.dtype) -> Iterator[Tensor]:
    """Tensors of (2, 4, 6) in every order of dimensions, and these and others, repeated in some dimensions."""
    for order in permutations(range(3)):
        inverse = [order.index(dim) for dim in range(3)]
        yield torch.ones([(2, 4, 6)[dim] for dim in order], dtype=dtype).permute(inverse)
    for shape in ((2, 4, 6), (3, 1, 4), (2, 3, 4, 5)):
        for repeated in product((False, True), repeat=len(shape)):
            own = [1 if is_repeated else size for size, is_repeated in zip(shape, repeated, strict=True)]
            yield torch.ones(own, dtype=dtype).expand(shape)


@pytest.mark.parametrize(
    ("transform", "dtype"),
    [
        (torch.fft.fftn, torch.complex64),
        (torch.fft.ifftn, torch.complex64),
        (torch.fft.fftn, torch.float32),
        (torch.fft.rfftn, torch.float32),
        (torch.fft.irfftn, torch.complex64),
    ],
)
def test_transforms_lie_as_kernels_lay_them(transform: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Over any dimensions, in any order, of operands that lie in any order."""
    mode = FakeMode()
    for operand in laid(dtype):
        for count in (1, 2, 3):
            for dims in permutations(range(operand.dim()), count):
                if transform is torch.fft.irfftn and operand.shape[dims[-1]] == 1:
                    continue  # of nothing
                with mode:
                    found = transform(mode.from_tensor(operand), dim=dims)
                expected = transform(operand, dim=dims)
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
                assert found.stride() == expected.stride(), (operand.stride(), dims)
