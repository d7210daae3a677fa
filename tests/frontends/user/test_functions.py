"""A mode of functions does to a planned step what it does to an eager one, and to nothing that outgrow calls."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import outgrow
from outgrow.frontends.user.functions import seen_by_modes, unseen_by_modes, without_modes
from outgrow.remarks import Remark


class Stretching(TorchFunctionMode):
    """Returns each tensor a little larger, whoever asks for it, and counts."""

    count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        self.count += 1
        found = func(*args, **(kwargs or {}))
        return found * (1 + 2**-10) if isinstance(found, Tensor) and found.is_floating_point() else found


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3))
    return nn.Sequential(*layers, nn.Linear(36, 3))


def trained(*, planned: bool, sets_all: bool) -> list[Tensor]:
    """Train in a mode, with gradients that are added up over two calls; return losses and state."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        if sets_all:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    called = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB") if planned else step
    losses = list[Tensor]()
    mode = Stretching()
    for number in range(5):
        x = torch.randn(3, 2, 8, 8)
        with mode:
            losses.append(called(x).clone())
        if number % 2 and not sets_all:
            optimizer.step()
            optimizer.zero_grad()
    state = [item for own in optimizer.state.values() for item in own.values()]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*losses, *model.state_dict().values(), *state, *gradients]


@pytest.mark.usefixtures("no_room_is_ample")
@pytest.mark.filterwarnings("ignore::outgrow.remarks.Remark")
@pytest.mark.parametrize("sets_all", [True, False], ids=["whole step", "added gradients"])
def test_a_mode_of_functions_does_what_it_does_in_eager_mode(*, sets_all: bool) -> None:
    """Though it acts on all that it sees: backward pass, updates and views of weights are none of it."""
    found, expected = (trained(planned=planned, sets_all=sets_all) for planned in (True, False))
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_mode_sees_no_function_of_a_plan() -> None:
    """Which a remark says, but of a device that is set."""
    model = nn.Linear(4, 4)
    step = outgrow.compile(model.forward, model=model, memory_budget="1GiB")
    x = torch.ones(2, 4)
    with torch.device("cpu"):
        step(x)
        step(x)
    with Stretching() as mode:
        step(x)
        seen = mode.count
        with pytest.warns(Remark, match="Stretching saw the operators of this step when it was captured"):
            step(x)
        assert 0 < mode.count == seen


@pytest.mark.usefixtures("parts_apart")
def test_a_part_leaves_out_modes_that_dynamo_has_traced() -> None:
    """Forward and backward, and they are active again afterwards."""
    x, gradients = torch.randn(3, 2, 8, 8), list[list[Tensor | None]]()
    for planned in (False, True):
        model = network().eval()
        called = torch.compile(model, backend="outgrow", options={"memory_budget": "1GiB"}) if planned else model
        for _ in range(2):
            with Halving() as mode:
                called(x).sum().backward()
                assert torch.overrides._get_current_function_mode() is mode
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)


class Halving(TorchFunctionMode):
    """Halves what layers give."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        is_of_layer = func in (nn.functional.linear, torch.conv2d) or isinstance(func, torch._ops.OpOverload)
        return found * 0.5 if is_of_layer else found


def test_modes_are_as_before_when_a_block_fails() -> None:
    """Whichever way they were put aside."""
    with Stretching() as mode:
        for block in (unseen_by_modes, without_modes):
            with pytest.raises(RuntimeError, match="shape"), block():
                torch.ones(2).view(3)
        assert mode.count == 0
        with unseen_by_modes(), seen_by_modes():
            torch.ones(1)
        assert mode.count == 1
    torch.ones(1)
    assert mode.count == 1
