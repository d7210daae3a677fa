"""Operators are captured whose kernels take what their abstract implementations do not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outgrow.frontends.fake.fakes import FakeMode
from tests.frontends.fake.laid import said, strides


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_losses_of_an_empty_batch_have_gradients(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Their means are no numbers, as a detector without a single box has it."""
    x, target = torch.ones(4, 0).mT, torch.ones(0, 4)
    assert said(lambda x: loss(x, target * 2), x, torch.ones(())) == strides(
        lambda x: loss(x, target), x, torch.ones(())
    )


def test_sizes_of_empty_maps_are_asked_for() -> None:
    """As they are where a map is made larger."""
    x = torch.ones(0, 3, 2, 2)
    assert said(lambda x: F.interpolate(x, scale_factor=2), x, torch.ones(0, 3, 4, 4)) == strides(
        lambda x: F.interpolate(x, scale_factor=2), x, torch.ones(0, 3, 4, 4)
    )


def test_errors_of_the_step_are_its_own() -> None:
    """What a kernel does not take is refused by torch."""
    x = torch.ones(0, 3)
    with pytest.raises(RuntimeError, match="broadcast"):
        said(lambda x: x + torch.ones(0, 4), x, x)


def test_complex_numbers_are_replaced_in_place_where_they_are_none() -> None:
    """The abstract implementation in place knows real ones alone."""
    mode = FakeMode()
    with mode:
        found = mode.from_tensor(torch.ones(2, 3, dtype=torch.complex64))
        assert found.nan_to_num_() is found
