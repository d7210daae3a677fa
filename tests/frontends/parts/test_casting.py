"""A backward pass within an autocast block, or behind it, has eager's bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from tests.frontends.parts.test_between import WIDTH, compiled, rows, same

pytestmark = [
    pytest.mark.usefixtures("parts_apart"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Inverting(nn.Linear):
    """Multiplies in single precision, and its backward pass does, too, but for one within an autocast block."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ torch.inverse(self.weight)


def within_or_behind(model: Callable[..., Any], *, is_within: bool) -> None:
    """Train with the forward pass in an autocast block, and the backward pass there, too, or behind it."""
    with torch.autocast("cpu", torch.bfloat16):
        result = model(rows())
        if is_within:
            result.float().square().mean().backward()
    if not is_within:
        result.float().square().mean().backward()


def test_autocast_around_the_forward_pass_ends_there() -> None:
    """The backward pass multiplies in the types of the forward pass, and in no others."""
    same(Inverting(WIDTH, WIDTH), partial(within_or_behind, is_within=False))


def test_a_backward_pass_may_be_within_an_autocast_block_or_behind_it() -> None:
    """It multiplies in the types that eager mode has there; in the block also for inputs of other shapes."""
    module, found = Inverting(WIDTH, WIDTH), list[Tensor]()

    def train(model: Callable[..., Any]) -> None:
        for is_within in (False, True, True, False):
            within_or_behind(model, is_within=is_within)
            assert module.weight.grad is not None
            found.append(module.weight.grad.clone())
            module.zero_grad()
        for size in (8, 12, 24):
            with torch.autocast("cpu", torch.bfloat16):
                model(torch.randn(size, WIDTH)).float().square().mean().backward()

    same(module, train)
    assert all(map(torch.equal, found[:4] * 2, found[4:]))


def test_a_backward_pass_that_could_not_be_captured_for_autocast_is_refused() -> None:
    """What it has begun with is no longer there."""
    module = nn.Linear(WIDTH, WIDTH)
    x = rows()
    with torch.autocast("cpu", torch.bfloat16):
        result = compiled(module)(x)
        with torch.no_grad():
            module.bias.zero_()
        with pytest.raises(Uncapturable, match="within an autocast block"):
            result.sum().backward()
