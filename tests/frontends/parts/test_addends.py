"""What adds up to a gradient does so in eager's order, wherever a tensor is read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from outgrow.frontends.parts.addends import addends
from tests.frontends.parts.test_between import WIDTH, rows, same

pytestmark = [
    pytest.mark.usefixtures("parts_apart"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Residual(nn.Module):
    """What a first part makes is read several times by each of the next two, and by the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x).sigmoid()
        torch._dynamo.graph_break()
        y = self.second(x).relu() * x.sin() + x
        torch._dynamo.graph_break()
        return y + self.third(x).tanh() * x.exp(), x


class Tied(nn.Module):
    """One weight reads words, and says them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.inner(self.words(x)).relu(), self.words.weight)


class Powers(nn.Module):
    """One operator reads its input twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (x * x) @ self.linear.weight * x


class Moments(nn.Module):
    """One operator reads what a first part makes, or a weight, and gives two results, which other code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x @ self.weight
        torch._dynamo.graph_break()
        variance, mean = torch.var_mean(x, 1)
        torch._dynamo.graph_break()
        return torch.std_mean(self.weight * variance.tanh().sum() + mean.sin().sum(), 0)


def test_an_operator_that_gives_several_results() -> None:
    """What it adds to the gradient of its input is added once, wherever results are read."""

    def train(model: Callable[..., Any]) -> None:
        deviation, mean = model(rows())
        (deviation.square().sum() + mean.sin().sum()).backward()

    same(Moments(), train)


def test_a_residual_across_parts() -> None:
    """Each part, and the loop, adds to what has arrived."""

    def train(model: Callable[..., Any]) -> None:
        y, x = model(rows())
        (y.square().mean() + x.cos().mean()).backward()

    same(Residual(), train)


def test_a_weight_that_is_read_twice_and_punished() -> None:
    """The penalty arrives first, since it was made last; in the next step, it was made first."""
    module = Tied()
    words = torch.randint(0, 50, (8, 12))

    def train(model: Callable[..., Any]) -> None:
        loss = F.cross_entropy(model(words).flatten(0, 1), words.flatten()) + module.words.weight.square().mean()
        loss.backward()
        penalty = module.words.weight.abs().sum()
        (F.cross_entropy(model(words).flatten(0, 1), words.flatten()) * 3 + penalty).backward()

    same(module, train)


class Casting(nn.Module):
    """Sets the data of its weight before each use, as losses with a weight of their own do, to what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor, reads: int = 1) -> Tensor:
        for _ in range(3):
            for _ in range(reads):
                x = (x @ self.weight).sin()
            self.weight.data = self.weight.data.to(x.dtype)
        return x @ self.weight


@pytest.mark.parametrize("reads", [1, 2])
def test_a_weight_whose_data_is_set_has_its_whole_gradient(reads: int) -> None:
    """In eager mode that is one sum, however often data is set to what it is."""

    def train(model: Callable[..., Any]) -> None:
        for _ in range(2):
            model(rows(), reads).square().mean().backward()

    same(Casting(), train)


def test_a_gradient_that_is_asked_for() -> None:
    """It is the sum of them all."""
    found: list[Tensor] = []

    def train(model: Callable[..., Any]) -> None:
        x = rows().requires_grad_()
        (y := x.sin()).retain_grad()
        found.append(*torch.autograd.grad(model(y).mean() + y.square().sum(), y))

    same(Powers(), train)
    assert all(torch.equal(one, found[0]) for one in found)


def test_addends_are_those_of_autograd_in_its_order() -> None:
    """Those of what was computed last come first; a result that is a leaf has what arrives there in its sum."""
    x, y, z = (torch.randn(3, requires_grad=True) for _ in range(3))
    results = [x.sin() + x.exp() * y, y]
    ones = [torch.ones(3) for _ in results]
    of_x, of_y, of_z = addends(results, [get_gradient_edge(leaf) for leaf in (x, y, z)], ones)
    assert all(map(torch.equal, of_x, (x.exp() * y, x.cos())))
    assert all(map(torch.equal, of_y, [1 + x.exp()]))
    assert [len(of_x), len(of_y), len(of_z)] == [2, 1, 0]
    results = torch.var_mean(x)
    assert [len(found) for found in addends(results, [get_gradient_edge(x)], [torch.ones(())] * 2)] == [1]
