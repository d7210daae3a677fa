"""What a mesh cannot divide is refused when the step is captured."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.capturing import _check_divisible
from outgrow.frontends.tracing.trace import trace
from outgrow.frontends.user.training.state import Training


class Choosing(nn.Module):
    """Columns, and a number that is alone."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen, self.count = nn.Buffer(torch.arange(4) < 2), nn.Buffer(torch.tensor(3))


def steps(model: Choosing) -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "looks at what is in a buffer": lambda x: x * 2 if bool(model.chosen.any()) else x,
        "as large as contents say": lambda x: x[:, torch.arange(4) < 2],
        "": lambda x: x * 2 if model.count.item() == 3 else x,
    }


@pytest.mark.parametrize("reason", steps(Choosing()))
def test_a_mesh_divides_what_has_no_contents(reason: str) -> None:
    """Numbers that are alone in a buffer are whole in each process."""
    model = Choosing()
    traced = trace(steps(model)[reason], Training((model,), ()), (torch.ones(2, 4),), {})
    if not reason:
        _check_divisible(traced)
        return
    with pytest.raises(Uncapturable, match=reason):
        _check_divisible(traced)


def test_a_mesh_gathers_by_numbers() -> None:
    """A result is as large as there are indices, also if they are in the batch; a mask is refused above."""
    training = Training((nn.Identity(),), ())
    _check_divisible(trace(lambda x, at: x[at], training, (torch.ones(2, 4), torch.tensor([1, 0, 1])), {}))


@pytest.mark.parametrize(
    "decide",
    [
        lambda loss: loss > 0,
        lambda loss: loss.item() > 0,
        lambda loss: loss.item() == loss.item(),
        lambda loss: (number := loss.item()) == number,
    ],
)
def test_a_step_on_a_mesh_guesses_nothing(decide: Callable[[Tensor], object]) -> None:
    """Its processes compute parts of what it decides by."""
    model = nn.Linear(4, 1)

    def step(x: Tensor) -> Tensor:
        loss = model(x).sum()
        return loss * 2 if decide(loss) else loss

    training = Training((model,), ())
    assert trace(step, training, (torch.ones(2, 4),), {}).guesses
    with pytest.raises(Uncapturable, match="needs the content"):
        trace(step, training, (torch.ones(2, 4),), {}, told=None)
