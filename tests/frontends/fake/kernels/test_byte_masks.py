"""A mask may be bytes: those that are not zero choose."""

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from tests.frontends.replay import replay

Way: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def written(x: Tensor, mask: Tensor) -> Tensor:
    """Rows are written over."""
    y = x * 2
    y[mask] = y[mask] * x[mask]
    return y


def chosen(x: Tensor, mask: Tensor) -> Tensor:
    """Rows are chosen, and columns by a mask that is the same in every call."""
    return x[mask][:, torch.tensor([1, 0, 1], dtype=torch.uint8)]


def added(x: Tensor, mask: Tensor) -> Tensor:
    """What is written by a mask is added."""
    return torch.zeros_like(x).index_put((mask,), x[mask], accumulate=True)


def one_or_the_other(x: Tensor, mask: Tensor) -> Tensor:
    """Every row has one of two values."""
    return torch.where(mask[:, None], x, x * 2)


@pytest.mark.filterwarnings("ignore:.*uint8:UserWarning")
@pytest.mark.parametrize("way", [written, chosen, added, one_or_the_other])
def test_a_mask_may_be_bytes(way: Way) -> None:
    """Results and gradients are those of eager mode."""

    def step(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        found = way(leaf, mask)
        return found.detach(), torch.autograd.grad(found.square().sum(), leaf)[0]

    given = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 255], dtype=torch.uint8)
    captured = capture(step, [], [], given)
    found = replay(captured, Training((), ()), given, {})
    assert isinstance(found, tuple)
    assert all(map(torch.equal, found, step(*given)))
