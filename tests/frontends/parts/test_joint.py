"""A region of `torch.utils.checkpoint` in a part runs again as it does in eager mode."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.frontends.parts.test_between import WIDTH, rows, same

pytestmark = [
    pytest.mark.usefixtures("parts_apart"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Observed(nn.Module):
    """A region that draws, and ends with a mean that moves."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(WIDTH, WIDTH), how
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.observed, x, **self.how)

    def observed(self, x: Tensor) -> Tensor:
        x = F.dropout(self.linear(x).sin(), 0.3)
        with torch.no_grad():
            self.get_buffer("mean").lerp_(x.mean(0), 0.1)
        return x


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("more", [{}, {"preserve_rng_state": False}, {"early_stop": False}], ids=str)
def test_a_region_runs_again_as_far_as_in_eager_mode_and_draws_as_there(
    more: dict[str, bool], *, use_reentrant: bool
) -> None:
    """A reentrant one to its end, others up to what is needed; both draw anew if they are not to draw the same."""
    module, left = Observed(use_reentrant=use_reentrant, **more), list[tuple[Tensor, Tensor]]()

    def train(model: Callable[..., Any]) -> None:
        for _ in range(3):
            model(rows().requires_grad_()).square().mean().backward()
        left.append((module.get_buffer("mean").clone(), torch.get_rng_state()))

    same(module, train)
    assert all(torch.equal(one, other) for found in left for one, other in zip(left[0], found, strict=True))
