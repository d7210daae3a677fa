"""Gradients of products have the bits of eager, however many factors are zero, though nothing looks at factors."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from outgrow.frontends.fake.eager.products import product
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by

Multiplied = Callable[[Tensor], Tensor]
WAYS: tuple[Multiplied, ...] = (
    lambda x: x.prod(),
    lambda x: x.prod(-1),
    lambda x: torch.prod(input=x, dim=0, keepdim=True),
    lambda x: x.prod(1, True),
    lambda x: x.t().prod(dim=0, dtype=torch.float64),
    lambda x: x[:, :1].prod(1),
    lambda x: x[0, 0].prod(),
)


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_gradient_is_chosen_by_what_the_factors_are(way: int, zeros: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways of torch, with a look at the factors, and ours without one give the same bits."""
    x = torch.randn(4, 6)
    x.view(-1)[:zeros] = 0
    x = x.requires_grad_()
    expected = WAYS[way](x)
    arriving = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(expected, x, arriving)
    monkeypatch.setattr(torch, "prod", product)
    monkeypatch.setattr(Tensor, "prod", product, raising=False)
    found = WAYS[way](x)
    (ours,) = torch.autograd.grad(found, x, arriving)
    assert torch.equal(found, expected)
    assert torch.equal(ours.view(torch.int32), gradient.contiguous().view(torch.int32))


def boxes() -> Job:
    """Sides are multiplied, and some are zero from the second batch on."""
    model = nn.Linear(6, 6)
    optimizer = SGD(model.parameters(), 0.1)
    drawn = iter(range(100))

    def step(x: Tensor, mask: Tensor) -> Tensor:
        sides = model(x)
        loss = sides.prod(-1).mean() + torch.prod(sides * mask, 1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def batch() -> tuple[Tensor, Tensor]:
        mask = torch.ones(20, 6)
        mask[0, : next(drawn)] = 0
        return torch.randn(20, 6), mask

    return Job(step, (model,), (optimizer,), batch)


def test_a_captured_step_multiplies_as_eager_does(disk_folder: Path) -> None:
    """Losses and weights, with and without a zero."""
    spill = Spill(OnDisk(disk_folder))
    try:
        assert differences(left_by(boxes, Within(1.0, spill)), left_by(boxes, eager)) == []
    finally:
        spill.close()
