"""A loop that trains by parts on a device beside the host has the bits of eager, and parts keep within the budget."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer, RAdam

from outgrow.errors import DeviceLost
from outgrow.frontends import dynamo
from outgrow.frontends.compile import Step
from outgrow.frontends.parts import parts
from outgrow.frontends.parts.shared_budget import Shared
from outgrow.frontends.platforms.on_device import OnDevice
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.user.training.state import Training
from outgrow.ir.graph import SwapIn
from outgrow.runtime.device import Cuda
from outgrow.runtime.planned_arena import PlannedMemory
from outgrow.runtime.program import Call, Program
from outgrow.runtime.repeated import Repeated
from outgrow.units import MIB
from tests.frontends import test_dynamo
from tests.frontends.test_dynamo import (
    STEPS,
    Checkpointed,
    Choosing,
    Deciding,
    Loop,
    Model,
    Plain,
    ShortLBFGS,
    accumulating,
    batch,
    closing,
    identity,
    left_by,
    plain,
)
from tests.runtime.stand_in import StandIn, Threads, sleepy

pytestmark = [
    pytest.mark.usefixtures("caches_of_its_own", "planned_parts"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
AMPLE = 1 << 30
CASES = (
    (Plain, AdamW, plain, 60 * MIB),
    (Deciding, RAdam, plain, AMPLE),
    (Checkpointed, AdamW, plain, 60 * MIB),
    (Choosing, AdamW, plain, 70 * MIB),
    (Plain, AdamW, accumulating, AMPLE),
    (Plain, ShortLBFGS, closing, 30 * MIB),
)
"""Models, optimizers, loops, and budgets: half of what a part takes in core, since a stand-in sees no other tensors."""


def by_parts(device: StandIn | Cuda, budget: int) -> Callable[[nn.Module], Model]:
    """Compile models under a budget on a device."""
    settings = Settings.of(budget)

    def part(module: torch.fx.GraphModule, _inputs: object) -> parts.Part:
        return dynamo.part_of(module, settings, device)

    return lambda module: torch.compile(module, backend=part)


@pytest.fixture
def device() -> Iterator[StandIn]:
    """A device whose streams run late."""
    yield StandIn(Threads(pauses=sleepy(1)))
    dynamo.forget()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[PlannedMemory]:
    """The memories of runs, as they begin."""
    found: list[PlannedMemory] = []
    memory = OnDevice.memory

    def noted(platform: OnDevice, program: Program, *, is_timed: bool) -> PlannedMemory:
        found.append(memory(platform, program, is_timed=is_timed))
        return found[-1]

    monkeypatch.setattr(OnDevice, "memory", noted)
    return found


@pytest.fixture
def misplaced(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many results were born elsewhere and copied, by the identity of the memory of their run."""
    found, born = Counter[int](), PlannedMemory.born

    def noted(memory: PlannedMemory, *given: Any) -> Tensor:
        before = memory.arena.misplaced
        item = born(memory, *given)
        found[id(memory)] += memory.arena.misplaced - before
        return item

    monkeypatch.setattr(PlannedMemory, "born", noted)
    return found


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[Repeated]:
    """The runs from a score, as they begin."""
    found: list[Repeated] = []
    start = Repeated.start
    monkeypatch.setattr(Repeated, "start", lambda run: (found.append(run), start(run)))
    return found


@pytest.mark.parametrize(
    ("kind", "rule", "loop", "budget"), CASES, ids=[f"{case[0].__name__}-{case[2].__name__}" for case in CASES]
)
@pytest.mark.usefixtures("several_threads")
def test_parts_have_the_bits_of_eager(
    kind: type[nn.Module],
    rule: Callable[[Iterator[nn.Parameter]], Optimizer],
    loop: Loop,
    budget: int,
    device: StandIn,
    begun: list[PlannedMemory],
    misplaced: Counter[int],
    repeated: list[Repeated],
    waits: Callable[[Shared], int],
) -> None:
    """Losses, parameters, buffers and generator; what is born lies where it is to live, and runs repeat a score."""
    expected = left_by(kind, rule, loop, identity)
    found = left_by(kind, rule, loop, by_parts(device, budget))
    assert found.losses == expected.losses
    assert all(map(torch.equal, found.tensors, expected.tensors))
    assert torch.equal(found.generator, expected.generator)
    (shared,) = dynamo.budgets()
    assert waits(shared) >= STEPS
    assert device.high_water_bytes() <= budget
    assert any(map(_moves, begun)) == (budget < AMPLE)
    assert all(misplaced[id(memory)] <= _copied(memory.program) for memory in begun)
    assert repeated


def _moves(memory: PlannedMemory) -> bool:
    return any(isinstance(item, SwapIn) for item in memory.program.instructions)


def _copied(program: Program) -> int:
    """How many results are not born where they are to live: gradients that arrive, and states of the generator."""
    names = [item.name for item in program.instructions if isinstance(item, Call)]
    return sum(name.startswith(("elsewhere", "read_generator")) for name in names)


def test_runs_that_wait_share_no_byte(device: StandIn, begun: list[PlannedMemory]) -> None:
    """Two forward passes, then their backward passes in either order: each has its arena, and the bits of eager."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Sigmoid(), nn.Linear(512, 10))
    model = by_parts(device, AMPLE)(module)
    for order in ((0, 1), (1, 0), (0, 1)):
        batches = [batch()[0], batch()[0]]
        expected = [_gradients(module, module(x)) for x in batches]
        results = [model(x) for x in batches]
        found = {at: _gradients(module, results[at]) for at in order}
        assert all(all(map(torch.equal, found[at], expected[at])) for at in order)
        del results
    (shared,) = dynamo.budgets()
    assert len(shared.idle) == 2
    assert len({id(memory.arena) for memory in begun}) == 2


def test_idle_arenas_make_room(device: StandIn) -> None:
    """What runs that are over kept is given back where another one would not have room beside it."""
    torch.manual_seed(0)
    small, large = (nn.Sequential(nn.Linear(512, width), nn.Tanh(), nn.Linear(width, 10)) for width in (256, 2048))
    budget = 48 * MIB
    compiled = {module: by_parts(device, budget)(module) for module in (small, large)}
    for _ in range(3):
        for module in (small, large):
            x = batch()[0]
            pair = [compiled[module](x), compiled[module](x)] if module is small else [compiled[module](x)]
            for result in pair:
                found = _gradients(module, result)
                assert all(map(torch.equal, found, _gradients(module, module(x))))
            del pair, result
    assert device.high_water_bytes() <= budget


@pytest.mark.parametrize("is_released", [True, False])
def test_what_is_kept_for_runs_that_come_is_given_back(device: StandIn, *, is_released: bool) -> None:
    """At the end of a loop that is not the user's own, and once nobody holds a plan."""
    module = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    model = by_parts(device, AMPLE)(module)
    _gradients(module, model(batch()[0]))
    (shared,) = dynamo.budgets()
    assert shared.resting_bytes() > 0
    if is_released:
        dynamo.InPlace(shared.settings).release()
    else:
        del model
        torch._dynamo.reset()
        gc.collect()
        assert not shared.plans
    assert shared.resting_bytes() == 0


def _gradients(module: nn.Module, result: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(result.square().sum(), list(module.parameters()))


@pytest.mark.cuda
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(("kind", "loop"), [(Plain, plain), (Deciding, plain), (Plain, accumulating)])
def test_parts_on_a_gpu_have_the_bits_of_eager(
    kind: type[nn.Module], loop: Loop, monkeypatch: pytest.MonkeyPatch, waits: Callable[[Shared], int]
) -> None:
    """The backward pass runs on a thread of autograd's own there."""
    monkeypatch.setattr(test_dynamo, "batch", lambda *rows: tuple(item.cuda() for item in batch(*rows)))
    within = by_parts(Cuda(), 400 * MIB)
    expected = left_by(kind, AdamW, loop, nn.Module.cuda)
    found = left_by(kind, AdamW, loop, lambda module: within(module.cuda()))
    (shared,) = dynamo.budgets()
    assert waits(shared) >= STEPS
    dynamo.forget()
    assert found.losses == expected.losses
    assert all(map(torch.equal, found.tensors, expected.tensors))


def _whole(device: StandIn, budget: int, width: int = 64) -> Step[[Tensor], Tensor]:
    """A step whose arena has some tensors of [512, `width`]."""
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64))

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return Step(step, Training((model,), ()), Settings.of(budget), name="", device=device)


def _with_an_idle_part(device: StandIn, budget: int) -> tuple[Callable[[Tensor], object], Shared]:
    """What runs both passes of a part, which has run, on inputs of 64 features, and what it shares."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 320), nn.ReLU(), nn.Linear(320, 64))
    by_part = by_parts(device, budget)(module)

    def run(x: Tensor) -> object:
        return _gradients(module, by_part(x))

    run(torch.randn(512, 64))
    (shared,) = dynamo.budgets()
    return run, shared


@pytest.mark.parametrize("is_backward", [False, True])
def test_a_part_on_a_device_that_fails_says_so(
    device: StandIn, monkeypatch: pytest.MonkeyPatch, *, is_backward: bool
) -> None:
    """Its next call says it at once."""
    module = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    model, (x, _) = by_parts(device, AMPLE)(module), batch()
    _gradients(module, model(x))

    def broken(*_: object) -> None:
        raise RuntimeError("an illegal access was met")

    result = model(x) if is_backward else None
    with monkeypatch.context() as failing:
        failing.setattr(PlannedMemory, "before", broken)
        device.failed = "an illegal access"
        with pytest.raises(DeviceLost, match=r"has failed \(an illegal access\)"):
            _gradients(module, model(x) if result is None else result)
    with pytest.raises(DeviceLost, match="an illegal access"):
        model(x)


def test_idle_whole_steps_make_room_for_parts(device: StandIn) -> None:
    """What they keep is not of others, for whom a part is planned with less, and is given back where it lacks room."""
    budget, x = 4 * MIB, torch.randn(512, 64)
    run, shared = _with_an_idle_part(device, budget)
    whole = _whole(device, budget, width=512)
    for _ in range(3):
        whole(x)
        idle = shared.resting_bytes()
        assert idle > 2 * MIB
        assert shared.others_bytes([]) < idle
        run(x)
        assert shared.taken_bytes <= budget
    (ready,) = shared.plans.values()
    assert not ready.planned.plan.decisions


def test_idle_parts_make_room_for_a_whole_step(device: StandIn) -> None:
    """What they keep for their next runs is no part of its baseline, and is given back where it lacks room."""
    budget, x = 2 * MIB, torch.randn(512, 64)
    run, shared = _with_an_idle_part(device, budget)
    assert shared.resting_bytes() > MIB
    whole = _whole(device, budget)
    assert shared.resting_bytes() == 0
    for _ in range(3):
        whole(x)
        assert whole.process_bytes <= budget
        run(x)
