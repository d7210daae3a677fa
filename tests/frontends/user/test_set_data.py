"""A tensor whose `.data` is set has other memory from then on, and nobody else sees that."""

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.state import Training
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


def test_a_gradient_goes_by_the_memory_that_was_read() -> None:
    """What autograd keeps of a weight itself is what that has by then; what it keeps of a view stays."""
    left: list[list[Tensor]] = []
    for is_captured in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 4, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, model: nn.Linear = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            x = x.clone().requires_grad_()
            y = (x * model.weight).square() + x @ model.weight.T
            model.weight.data = model.weight.data * 3
            y.sum().backward()
            optimizer.step()
            return y.detach()

        given = (torch.ones(4, 4),)
        training = Training((model,), (optimizer,))
        y = replay(capture(step, [model], [optimizer], given), training, given, {}) if is_captured else step(*given)
        assert isinstance(y, Tensor)
        assert model.weight.grad is not None
        left.append([y, model.weight.detach(), model.weight.grad])
    assert all(map(torch.equal, *left))


def test_what_was_there_before_may_come_back() -> None:
    """Weights that are rounded for the passes alone are updated, in the memory that they had."""
    left: list[list[Tensor]] = []
    for is_captured in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, model: nn.Linear = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            own = model.weight.data
            for count in (8, 4):
                model.weight.data = (own * count).round() / count
                model(x).square().sum().backward()
                model.weight.data = own
            optimizer.step()
            return model(x).detach()

        weight, given, training = model.weight.data, (torch.ones(4, 4),), Training((model,), (optimizer,))
        y = replay(capture(step, [model], [optimizer], given), training, given, {}) if is_captured else step(*given)
        assert isinstance(y, Tensor)
        assert model.weight.data_ptr() == weight.data_ptr()
        left.append([y, weight])
    assert all(map(torch.equal, *left))


def test_nobody_looks_at_what_was_there_before() -> None:
    """A number of a buffer that a step may look at is another one once its `.data` is set."""
    model = nn.Linear(4, 4)
    model.register_buffer("count", torch.tensor(1.0))

    def step(x: Tensor) -> Tensor:
        count = model.get_buffer("count")
        count.data = count.data + x.sum()
        return x if count > 2 else -x

    with pytest.raises(Uncapturable, match="needs the content"):
        capture(step, [model], [], (torch.ones(4),))
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
