"""A tensor whose `.data` is set has other memory from then on, and nobody else sees that."""

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from tests.frontends.replay import replay


def test_tensors_stay_and_whoever_holds_their_memory_keeps_what_is_in_it() -> None:
    """A view from before the step, one from within it, and a snapshot of the state; twice in turn."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        old = model.weight.detach()
        model.weight.data = model.weight.data * 0.5 + x
        model.weight.data[0] = 1.0
        return old + 0, model.weight.detach() + 0

    weight, given, training = model.weight, (torch.ones(4),), Training((model,), (optimizer,))
    found = capture(step, [model], [optimizer], given)
    for _ in range(2):
        snapshot, before = model.state_dict()["weight"], weight.detach().clone()
        left = replay(found, training, given, {})
        after = before * 0.5 + 1.0
        after[0] = 1.0
        assert model.weight is weight
        assert torch.equal(snapshot, before)
        assert torch.equal(weight, after)
        assert isinstance(left, tuple)
        assert all(map(torch.equal, left, (before, after)))


def test_what_was_there_before_may_come_back() -> None:
    """Weights that are rounded for the passes alone are updated, in the memory that they had."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        own = model.weight.data
        for count in (8, 4):
            model.weight.data = (own * count).round() / count
            model(x).square().sum().backward()
            model.weight.data = own
        optimizer.step()

    weight, before = model.weight.data_ptr(), model.weight.detach().clone()
    found = capture(step, [model], [optimizer], (torch.ones(4, 4),))
    replay(found, Training((model,), (optimizer,)), (torch.ones(4, 4),), {})
    assert model.weight.data_ptr() == weight
    assert not torch.equal(model.weight, before)
    assert not any(item.is_data for item in found.puts)


def test_nobody_looks_at_what_was_there_before() -> None:
    """A number of a buffer that a step may look at is another one once its `.data` is set."""
    model = nn.Linear(4, 4)
    model.register_buffer("count", torch.tensor(1.0))

    def step(x: Tensor) -> Tensor:
        count = model.get_buffer("count")
        count.data = count.data + x.sum()
        return x if count > 2 else -x

    assert len(capture(step, [model], [], (torch.ones(4),)).guesses) == 1
    assert model.get_buffer("count") == 1.0


@pytest.mark.parametrize("which", ["argument", "outside", "form", "shared", "gradient"])
def test_other_memory_is_refused(which: str) -> None:
    """That of the caller, or of others, and one in which the tensor would lie otherwise."""
    model, outside = nn.Linear(4, 4), torch.ones(4, 4)
    other = nn.Linear(4, 4)
    model.weight.grad = torch.ones(4, 4)

    def step(x: Tensor) -> None:
        weight = model.weight
        made = weight.data * 2
        match which:
            case "argument":
                x.data = made
            case "outside":
                weight.data = outside
            case "form":
                weight.data = made.T
            case "shared":
                weight.data = other.weight.data
            case _:
                assert weight.grad is not None
                weight.grad.data = made

    with pytest.raises(Uncapturable, match=r"sets the \.data of .*copy_"):
        capture(step, [model, other], [], (torch.ones(4, 4),))
