"""A result of a part that is a view of its input is one for autograd, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.parts.aliases import ViewOf
from tests.frontends.parts.test_between import WIDTH, compiled, rows, same

pytestmark = [
    pytest.mark.usefixtures("parts_apart"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Skipping(nn.Module):
    """Keeps a view of what it writes later."""

    def __init__(self, *, is_sliced: bool) -> None:
        super().__init__()
        self.linear, self.is_sliced = nn.Linear(WIDTH, WIDTH), is_sliced

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        torch._dynamo.graph_break()
        view = x[:, : WIDTH // 2] if self.is_sliced else x.t()
        other = x.sigmoid()
        torch._dynamo.graph_break()
        x.mul_(other.detach()).clamp_(min=0.1)
        torch._dynamo.graph_break()
        return view.square().sum() + x.sum()


@pytest.mark.parametrize("is_sliced", [True, False])
def test_what_is_written_later_is_in_the_history_of_a_view(is_sliced: bool) -> None:
    """The view was made by a part, and its base is written behind it."""
    same(Skipping(is_sliced=is_sliced), lambda model: model(rows()).backward())


class Turned(nn.Module):
    """A part returns a view of what it reads itself, before and behind the view; later code reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        before, turned = x.exp(), x.t()
        behind = self.one(turned).relu() * self.other(turned) + x.sigmoid()
        torch._dynamo.graph_break()
        return x + (behind * self.third(turned).tanh() * before * turned.sin()).t()


class Divided(nn.Module):
    """Three views of one tensor, as of an attention, which are all that is read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        query, key, value = x.chunk(3, 1)
        torch._dynamo.graph_break()
        return (self.second(query) @ key.t()).softmax(1) @ value + query * value


class Weaving(nn.Module):
    """A part writes over one input, and returns a view of another; only one of two steps reads the view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, reads_view: bool) -> Tensor:
        x, y = self.first(x), self.second(x)
        torch._dynamo.graph_break()
        y.mul_(x.detach())
        turned = x.t()
        z = turned.sin() * self.second(turned)
        torch._dynamo.graph_break()
        return x * y + (turned.cos() * z if reads_view else z)


def square() -> Tensor:
    return torch.randn(WIDTH, WIDTH)


@pytest.mark.parametrize("module", [Turned(), Divided()])
def test_what_arrives_for_a_view_is_added_up_there(module: nn.Module) -> None:
    """It is no addend of the input: what the part reads of the view is added to it first."""
    same(module, lambda model: model(square()).square().sum().backward())


def test_a_view_beside_an_input_that_is_written() -> None:
    """Also where no gradient arrives for the view."""

    def train(model: Callable[..., Any]) -> None:
        for reads_view in (True, False, True):
            model(square(), reads_view=reads_view).square().sum().backward()

    same(Weaving(), train)


class Handing(nn.Module):
    """Hands out a view of its input, and what it reads of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(square())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turned = x.t()
        return turned, turned.sigmoid() * self.weight.sum() + x.tanh()


def test_a_view_may_be_written_as_far_as_the_input_may() -> None:
    """The write is in the history of the input, and the other way round; of what `unbind` gives it is refused."""
    module = Handing()

    def train(model: Callable[..., Any]) -> None:
        for writes_view in (True, False):
            x = module.weight * 2
            turned, result = model(x)
            (turned if writes_view else x).mul_(0.5)
            (result.sum() + turned.sin().sum() + x.cos().square().sum()).backward()
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            model(torch.stack([module.weight, module.weight]).unbind()[0])[0].mul_(2)

    same(module, train)


def test_views_are_made_as_they_lie() -> None:
    """By permuting or reshaping the input where that gives them, else by strides; from where it begins itself."""
    base = torch.arange(24.0).view(4, 6)
    for view in (
        base.t(),
        base.view(2, 12),
        base[1:, ::2],
        base.view(-1),
        base[:, 3],
        base.unsqueeze(1).expand(4, 3, 6),
    ):
        lying = ViewOf(0, tuple(view.shape), view.stride(), int(view.storage_offset()))
        for given in (base, torch.arange(30.0)[6:].view(4, 6)):
            found: Any = lying.of([given])
            assert found._base is (given if given._base is None else given._base)
            expected = given.as_strided(view.shape, view.stride(), given.storage_offset() + view.storage_offset())
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_a_view_that_a_part_writes_is_refused() -> None:
    """Its gradient would be that of before."""
    linear, flatten, relu = map(compiled, (nn.Linear(WIDTH, WIDTH), nn.Flatten(0), nn.ReLU(inplace=True)))
    with pytest.raises(Uncapturable, match="which is a view"):
        relu(flatten(linear(torch.randn(2, WIDTH))))
