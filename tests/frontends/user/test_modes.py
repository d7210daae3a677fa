"""Is a step captured anew where a mode of torch, or what an optimizer has of its own, changes between calls?"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import outgrow
from outgrow.errors import Uncapturable
from outgrow.frontends import within_budget
from outgrow.remarks import Remark


class Scaled(SGD):
    """An optimizer that reads a number of its own."""

    scale = 1.0

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad * (0.1 * self.scale))


class Doubling(TorchFunctionMode):
    """Doubles what linear layers give."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is F.linear else found


class DoublingOperators(TorchDispatchMode):
    """Doubles what operators give that multiply matrices, and counts them."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        is_product = func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        self.count += is_product
        return found * 2 if is_product else found


def halves() -> AbstractContextManager[object]:
    """Saves half of each tensor's value."""
    return torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 0.5, lambda kept: kept)


@contextmanager
def other_autocast() -> Iterator[None]:
    """Lets autocast choose another type."""
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", torch.float16)
    yield
    torch.set_autocast_dtype("cpu", before)


def played(change: Callable[[Scaled], AbstractContextManager[object] | None], *, planned: bool) -> list[Tensor]:
    """Train for four calls, the last two changed, with a scheduler; return losses and parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = Scaled(model.parameters())
    StepLR(optimizer, 100)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    called = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="2GiB") if planned else step
    losses = [called(torch.randn(8, 16)) for _ in range(2)]
    block = change(optimizer)
    for _ in range(2):
        x = torch.randn(8, 16)
        if block is None:
            losses.append(called(x))
        else:
            with block:
                losses.append(called(x))
            block = change(optimizer)
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def louder(optimizer: Scaled) -> None:
    """Change what the optimizer's step reads of itself."""
    optimizer.scale = 5.0


def still(optimizer: Scaled) -> None:
    """Let the optimizer do nothing."""
    optimizer.step = lambda: None


@pytest.mark.parametrize(
    "change",
    [
        louder,
        still,
        lambda _: halves(),
        lambda _: other_autocast(),
        lambda _: Doubling(),
        lambda _: DoublingOperators(),
    ],
    ids=["scheduled optimizer", "step", "saved tensors", "autocast", "function mode", "dispatch mode"],
)
def test_a_step_is_that_of_the_mode(
    change: Callable[[Scaled], AbstractContextManager[object] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what eager does, before the change and after it."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    found, expected = played(change, planned=True), played(change, planned=False)
    assert all(map(torch.equal, found, expected))


def test_a_mode_sees_operators_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When they are captured, and a remark says so from the next call on."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    model = nn.Linear(4, 4)
    step = outgrow.compile(model.forward, model=model, memory_budget="1GiB")
    x = torch.ones(2, 4)
    with DoublingOperators() as mode:
        found = step(x)
        with pytest.warns(Remark, match="DoublingOperators saw the operators of this step when it was captured"):
            again = step(x)
        assert mode.count == 1
    assert torch.equal(found, again)
    assert torch.equal(found, 2 * model(x))


def test_anomaly_mode_and_copies_are_refused_by_name() -> None:
    """With what to do."""
    model = nn.Linear(2, 2)
    step = outgrow.compile(model.forward, model=model, memory_budget="1GiB")
    with (
        pytest.warns(UserWarning, match="Anomaly"),
        torch.autograd.detect_anomaly(),
        pytest.raises(Uncapturable, match="anomaly mode looks at"),
    ):
        step(torch.ones(1, 2))
    with pytest.raises(TypeError, match="cannot be copied"):
        deepcopy(step)


def test_anomaly_mode_within_a_step_is_named_and_a_hook_that_looks_is_not_taken_for_it() -> None:
    """Both look at a gradient in the middle of the backward pass."""
    model = nn.Linear(2, 1)

    def watched(x: Tensor) -> None:
        with torch.autograd.set_detect_anomaly(mode=True):
            model(x).square().sum().backward()

    def hooked(x: Tensor) -> None:
        found = model(x)
        found.register_hook(lambda gradient: gradient if float(gradient.sum()) else None)
        found.square().sum().backward()

    for step, message in ((watched, "sum.*anomaly mode looks at"), (hooked, "float.*needs the content")):
        compiled = outgrow.compile(step, model=model, memory_budget="1GiB")
        with warnings.catch_warnings(action="ignore"), pytest.raises(Uncapturable, match=message):
            compiled(torch.ones(1, 2))


def test_a_step_may_switch_its_model_to_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an evaluation between epochs, with what is frozen switched back; bit for bit what eager does."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)

    def losses(*, planned: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x: Tensor) -> Tensor:
            model.train()
            model[1].eval()
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        called = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="2GiB") if planned else step
        found: list[Tensor] = []
        for _ in range(2):
            found += [called(torch.randn(6, 8)) for _ in range(2)]
            assert [module.training for module in model] == [True, False, True, True, True]
            model.eval()
            found.append(model(torch.randn(6, 8)).detach())
        return found

    assert all(map(torch.equal, losses(planned=True), losses(planned=False)))
