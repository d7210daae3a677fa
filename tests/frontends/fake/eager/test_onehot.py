"""One-hot vectors lie as in eager mode, and a class that there is not is an error."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from tests.frontends.replay import replay


def step(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sums round by how the vectors lie."""
    found = F.one_hot(x, 5)
    return found, (found * 0.37).sum((0, 1))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_vectors_have_eagers_layout(is_transposed: bool) -> None:
    """Also those of classes that lie otherwise."""
    classes = torch.randint(0, 5, (7, 9))
    classes = classes.t() if is_transposed else classes
    captured = capture(step, [], [], (classes,))
    found, expected = replay(captured, Training((), ()), (classes,), {}), step(classes)
    assert isinstance(found, tuple)
    assert all(map(torch.equal, found, expected))
    assert [item.stride() for item in found] == [item.stride() for item in expected]


def test_a_class_that_there_is_not_is_an_error() -> None:
    """In a later call, as in eager mode."""
    captured = capture(step, [], [], (torch.tensor([[1, 2]]),))
    for wrong in (5, -1):
        with pytest.raises(RuntimeError, match="out of bounds"):
            replay(captured, Training((), ()), (torch.tensor([[1, wrong]]),), {})
