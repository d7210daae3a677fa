"""In ample room a part runs as it is written: no smaller batch costs a capture, and the bits are eager's."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from outgrow.frontends import dynamo
from outgrow.frontends.parts import parts
from outgrow.frontends.parts.ample import with_room_for
from outgrow.frontends.preparing.settings import Settings
from outgrow.remarks import Remark
from outgrow.runtime import arena
from tests.frontends.parts import test_addends
from tests.runtime.stand_in import StandIn, Threads, sleepy

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
WIDTH, AMPLE = 4, 1 << 40
ROWS = (64, 40, 64, 33, 64, 80, 7)
CAPTURED = [64, 40, 64, 80]
"""The first call, the first one with another number of rows, for which Dynamo compiles anew, and larger ones."""


class Broken(nn.Module):
    """Two parts, with dropout, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.ReLU())
        self.second = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x * x.mean())


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sequence[object]]]:
    """The inputs of all parts that are captured; none is known before, and none is left."""
    found: list[Sequence[object]] = []
    capture = parts.capture

    def noted(step: Callable[..., object], models: Any, optimizers: Any, args: Sequence[object]) -> object:
        found.append(args)
        return capture(step, models, optimizers, args)

    monkeypatch.setattr(parts, "capture", noted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield found
    dynamo.forget()


def compiled(module: nn.Module, budget: int, device: StandIn | None = None) -> Callable[..., Tensor]:
    def part(graph: fx.GraphModule, _inputs: object) -> parts.Part:
        return dynamo.part_of(graph, Settings.of(budget), device)

    return torch.compile(module, backend=part)


def rows_of(captured: Sequence[Sequence[object]]) -> list[int]:
    """For how many rows parts were captured, each once, though some are again for gradients as they arrive."""
    rows = [max(arg.shape[0] for arg in args if isinstance(arg, Tensor) and arg.ndim == 2) for args in captured]
    return [now for now, _ in groupby(rows)]


def trained(compile_: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> list[Tensor]:
    """Train on batches of many sizes; return losses, weights, statistics and the generator."""
    torch.manual_seed(0)
    module = Broken()
    model, optimizer = compile_(module), AdamW(module.parameters())
    losses: list[Tensor] = []
    for rows in ROWS:
        loss = model(torch.randn(rows, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *module.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("has_device", [False, True], ids=["cpu", "device"])
def test_smaller_batches_are_not_captured(captured: list[Sequence[object]], has_device: bool) -> None:
    """Nor planned; they count as runs all the same."""
    device = StandIn(Threads(pauses=sleepy(1))) if has_device else None
    expected = trained(lambda module: module)
    found = trained(lambda module: compiled(module, AMPLE, device))
    assert all(map(torch.equal, found, expected))
    assert rows_of(captured) == CAPTURED
    (report,) = dynamo.parts().budgets
    assert sum(part.runs for part in report.parts) == 2 * len(ROWS)
    assert report.taken_bytes <= AMPLE


@pytest.mark.usefixtures("captured")
def test_a_weight_whose_data_is_set_has_its_gradient_as_in_eager_mode() -> None:
    """What arrives for it is added up before it is added to what was there."""
    module, found = test_addends.Casting(), list[Tensor | None]()
    for model in (module, compiled(module, AMPLE)):
        torch.manual_seed(0)
        module.zero_grad()
        for _ in range(3):
            model(test_addends.rows()).square().mean().backward()
        found.append(module.weight.grad)
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], found[1])
    assert module.weight._version == 0


def test_what_room_is_ample(captured: list[Sequence[object]]) -> None:
    """What was taken, with what is more in core, twice; for torch's kernels; of a part that has run on such inputs."""
    module = nn.Linear(WIDTH, 1)
    model = compiled(module, AMPLE)
    batch = torch.randn(8, WIDTH)
    model(batch).square().sum().backward()
    (shared,) = dynamo.budgets()
    (ready,) = shared.plans.values()
    inputs = [module.weight, module.bias, batch]
    assert [item.shape for item in inputs] == [item.shape for item in captured[0] if isinstance(item, Tensor)]
    assert with_room_for(inputs, [ready], shared) is ready
    assert with_room_for([*inputs[:2], torch.randn(9, WIDTH)], [ready], shared) is None
    assert with_room_for(inputs, [replace(ready, runs=0)], shared) is None
    swapping = replace(ready)
    swapping.more_in_core_bytes = AMPLE // 2
    assert with_room_for(inputs, [swapping], shared) is None
    narrow = replace(shared.settings, budget_bytes=2 * shared.taken_bytes)
    assert with_room_for(inputs, [ready], replace(shared, settings=narrow)) is None
    assert with_room_for(inputs, [ready], replace(shared, settings=replace(narrow, budget_bytes=AMPLE))) is ready
    own_kernels = replace(shared.settings, kernels="compiled")
    assert with_room_for(inputs, [ready], replace(shared, settings=own_kernels)) is None


def test_within_a_checkpoint_a_part_is_planned(captured: list[Sequence[object]]) -> None:
    """There its forward pass may come twice, and both times it has to keep as much."""
    model = compiled(nn.Linear(WIDTH, 1), AMPLE)
    for rows in (8, 6, 8, 5):
        checkpoint(model, torch.randn(rows, WIDTH), use_reentrant=False).sum().backward()
    assert rows_of(captured) == [8, 6, 8, 5]


def test_memory_that_is_kept_goes_when_modules_run_as_before(captured: list[Sequence[object]]) -> None:
    """In ample room what was freed rests for the next call; then nobody wants it."""
    module, size = nn.Linear(WIDTH, WIDTH), 1 << 18
    in_place = dynamo.InPlace(Settings.of(AMPLE))
    in_place.compile(module)
    for rows in (size, size, size, size // 2):
        module(torch.randn(rows, WIDTH)).square().mean().backward()
    assert len(captured) <= 3
    assert arena.resting_bytes() > 0
    in_place.release()
    assert arena.resting_bytes() == 0


@pytest.mark.usefixtures("planned_parts")
def test_many_sizes_are_remarked(captured: list[Sequence[object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a capture and a plan, and the remedy is to have few."""
    monkeypatch.setattr(parts, "_MANY", 3)
    model = compiled(nn.Linear(WIDTH, 1), AMPLE)
    batches = [torch.randn(rows, WIDTH) for rows in (9, 8, 7, 6)]
    with pytest.warns(Remark, match="captured and planned 3 times, for other inputs each time"):
        deque((model(batch).sum().backward() for batch in batches), maxlen=0)
    assert rows_of(captured) == [9, 8, 7, 6]


class Masked(nn.Module):
    """What a mask chooses is replaced by a vector that is learned, of which the gradient has as many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.vector = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.first(x)
        x[mask] = self.vector
        return self.second(x)


@pytest.mark.parametrize("is_planned", [False, True], ids=["ample", "planned"])
def test_a_part_is_captured_for_each_answer(
    captured: list[Sequence[object]], is_planned: bool, request: pytest.FixtureRequest
) -> None:
    """In ample room, for each number that is larger than all before."""
    if is_planned:
        request.getfixturevalue("planned_parts")

    def train(compile_: Callable[[nn.Module], Callable[[Tensor, Tensor], Tensor]]) -> list[Tensor]:
        torch.manual_seed(0)
        module = Masked()
        model, optimizer, losses = compile_(module), AdamW(module.parameters()), list[Tensor]()
        for chosen in (2, 3, 2, 1, 3):
            loss = model(torch.randn(8, WIDTH), torch.arange(8) < chosen).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *module.state_dict().values()]

    expected, found = train(lambda module: module), train(lambda module: compiled(module, AMPLE))
    assert all(map(torch.equal, found, expected))
    masks = [arg for args in captured for arg in args if isinstance(arg, Tensor) and arg.dtype == torch.bool]
    assert [now for now, _ in groupby(int(mask.sum()) for mask in masks)] == ([2, 3, 1] if is_planned else [2, 3])


def test_a_weight_may_be_cast_for_several_calls(captured: list[Sequence[object]]) -> None:
    """In one autocast block eager mode casts it once, and parts that run as they are written do not cast it again."""

    def train(compile_: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> list[Tensor]:
        torch.manual_seed(0)
        module = nn.Linear(WIDTH, WIDTH)
        model, found = compile_(module), list[Tensor]()
        for calls in (1, 3):
            with torch.autocast("cpu", torch.bfloat16):
                results = [model(torch.randn(32, WIDTH)) for _ in range(calls)]
            torch.stack(results).float().square().sum().backward()
            assert module.weight.grad is not None
            found.append(module.weight.grad.clone())
        return found

    assert all(map(torch.equal, train(lambda module: compiled(module, AMPLE)), train(lambda module: module)))
    assert len(captured) == 1
