"""The gradient of a number that fills the places of a mask has the bits of eager, whatever the mask."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.optim import SGD

from outgrow.frontends.fake.eager.fills import filled, filled_in_place
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by


@pytest.mark.parametrize("shape", [(5, 40), (5, 1), (40,)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_gradients_have_the_bits_of_torch(shape: tuple[int, ...], share: float) -> None:
    """Of the tensor, also where it is broadcast, and of the number."""
    x, number = torch.randn(shape, requires_grad=True), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    mask, arriving = torch.rand(5, 40) < share, torch.randn(5, 40)
    expected = torch.masked_fill(x, mask, number)
    found = filled(x, mask, number)
    assert torch.equal(found, expected)
    wanted = torch.autograd.grad(expected, (x, number), arriving)
    ours = torch.autograd.grad(found, (x, number), arriving)
    assert all(torch.equal(one, other) and one.dtype is other.dtype for one, other in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("columns", [slice(None), slice(3, 20)])
def test_what_is_filled_in_place_has_such_a_gradient(columns: slice) -> None:
    """Of a whole tensor, and of a view."""
    x, number = torch.randn(5, 40, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    mask, arriving = torch.rand(5, 40)[:, columns] < 0.3, torch.randn(5, 40)
    expected, found = x.sin(), x.sin()
    torch.Tensor.masked_fill_(expected[:, columns], mask, number)
    filled_in_place(found[:, columns], mask, number)
    assert torch.equal(found, expected)
    wanted = torch.autograd.grad(expected, (x, number), arriving)
    ours = torch.autograd.grad(found, (x, number), arriving)
    assert all(torch.equal(one, other) for one, other in zip(ours, wanted, strict=True))


def test_a_gradient_of_a_gradient_is_that_of_torch() -> None:
    """As a penalty on gradients asks for it; the mask is broadcast."""
    x, number = torch.randn(5, 40, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    mask = torch.rand(40) < 0.3

    def penalised(fill: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        loss = (fill(x, mask, number) * x).pow(3).sum()
        first = torch.autograd.grad(loss, (x, number), create_graph=True)
        return torch.autograd.grad(first[0].square().sum() + first[1].square(), (x, number))

    assert all(map(torch.equal, penalised(filled), penalised(torch.masked_fill)))


class Filled(nn.Module):
    """Scores of which some are a number that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.number = nn.Linear(40, 40), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = torch.masked_fill(self.scores(x), mask, self.number)
        scores = (scores * x).masked_fill(mask.t(), self.number) * x
        scores[:, 3:].masked_fill_(mask[:, 3:], self.number)
        return scores.square().mean()


def learnt(made: Callable[[], nn.Module] = Filled) -> Job:
    """Another mask in each batch."""
    model = made()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = model(x, mask)
        loss.backward()
        optimizer.step()
        gradient = model.get_parameter("number").grad
        assert gradient is not None
        return loss, gradient.clone()

    return Job(step, (model,), (optimizer,), lambda: (torch.randn(40, 40), torch.rand(40, 40) < torch.rand(())))


def test_a_captured_step_fills_as_eager_does(disk_folder: Path) -> None:
    """Losses, weights and the gradient of the number, in core and within less."""
    spill = Spill(OnDisk(disk_folder))
    try:
        for share in (1.0, 0.7):
            assert differences(left_by(learnt, Within(share, spill)), left_by(learnt, eager)) == []
        traced = partial(learnt, lambda: fx.symbolic_trace(Filled()))  # it holds torch's functions
        assert differences(left_by(traced, Within(1.0, spill)), left_by(traced, eager)) == []
    finally:
        spill.close()
