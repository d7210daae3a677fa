"""A step may decide by whether two tensors are alike."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture


def decided(ask: Callable[[Tensor, Tensor], bool]) -> int:
    """How many guesses a step makes that asks this of what it computes."""
    layer = nn.Linear(4, 4)

    def step(x: Tensor) -> Tensor:
        found = layer(x)
        return found * 2 if ask(found, found * 1.5) else found

    return len(capture(step, [layer], [], (torch.ones(2, 4),)).guesses)


@pytest.mark.parametrize(
    "ask",
    [
        torch.equal,
        torch.allclose,
        lambda one, other: one.equal(other),
        lambda one, other: one.allclose(other, 1e-2, equal_nan=True),
        lambda one, other: torch.allclose(input=one, other=other, atol=0.1),
    ],
)
def test_whether_tensors_are_alike_is_guessed(ask: Callable[[Tensor, Tensor], bool]) -> None:
    """Functions and methods, whatever they are given."""
    assert decided(ask) == 1


def test_shapes_tell_that_tensors_are_not_equal() -> None:
    """That is known while the step is captured."""
    assert not decided(lambda one, other: torch.equal(one, other[:1]))


def test_whether_a_tensor_is_itself_is_left_to_torch() -> None:
    """NaN may be no matter then."""
    with pytest.raises(Uncapturable, match="needs the content"):
        decided(lambda one, _other: torch.equal(one, one))
