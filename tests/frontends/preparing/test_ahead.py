"""Does a look ahead tell what a training takes, from its first step on?"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Infeasible, InvalidMachine
from outgrow.frontends.preparing import ahead as ahead_module
from outgrow.frontends.preparing.ahead import Ahead, How, KnownMachine, known_machine, look_ahead
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.graph import Role
from outgrow.runtime.device import Cuda

V100 = KnownMachine(described_machine("v100-pcie3"))


def adaptive(*, width: int = 1024, rows: int = 64) -> Workload:
    """Return the training of a network whose optimizer state is twice its weights."""
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(width, width), nn.Tanh())))
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Workload(model, optimizer, step, batches=[(torch.randn(rows, width),)])


def normalised(*, width: int = 400, rows: int = 400, channels: int = 1 << 18) -> Workload:
    """Return the training of a network of storages of 640 kB, beside buffers that a forward pass writes."""
    model = nn.ModuleList([*(nn.Linear(width, width) for _ in range(4)), nn.BatchNorm1d(channels, affine=False)])
    optimizer = torch.optim.SGD(model.parameters())

    def step(x: Tensor, rest: Tensor) -> Tensor:
        for layer in list(model)[:-1]:
            x = torch.tanh(layer(x))
        loss = x.square().mean() + model[-1](rest).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Workload(model, optimizer, step, batches=[(torch.randn(rows, width), torch.randn(2, channels))])


def floor_of(ahead: Ahead) -> int:
    """Return the floor that a refusal names."""
    with pytest.raises(Infeasible) as refusal:
        ahead.planned(1 << 20, How(prove=False))
    return refusal.value.floor_bytes


def test_the_plan_is_that_of_the_step_that_comes_again() -> None:
    """It finds the state of the optimizer."""
    ahead = look_ahead(adaptive, {}, V100)
    planned = ahead.planned(1 << 32, How())
    given = [storage for name, storage in planned.graph.storages.items() if name not in planned.graph.born_at]
    assert sum(item.size_bytes for item in given if item.role is Role.OPTIMIZER) > 2 * 6 * (4 << 20)
    assert planned.graph == ahead.steps[-1].graph


def test_a_floor_that_is_named_has_a_plan() -> None:
    """Exactly there, for every step, and not a byte below."""
    ahead = look_ahead(adaptive, {}, V100)
    floor = floor_of(ahead)
    planned = ahead.planned(floor, How(prove=False))
    assert planned.plan.budget.limit_bytes == floor
    assert planned.plan.floor_bytes <= floor
    with pytest.raises(Infeasible):
        ahead.planned(floor - 1, How(prove=False))


def test_the_floor_without_a_budget_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where small storages stay, as on a machine without a compiler, and buffers are copied."""
    monkeypatch.setattr(ahead_module, "heap_least_bytes", lambda: 1 << 20)
    ahead = look_ahead(normalised, {}, V100)
    assert ahead.steps[-1].copied_bytes > 2 << 20
    floor = ahead.floor_bytes()
    assert ahead.planned(floor, How(prove=False)).plan.floor_bytes <= floor


@pytest.mark.parametrize("is_turned", [False, True])
def test_each_step_has_to_fit(*, is_turned: bool) -> None:
    """The floor that is named is the largest, whichever step it is of."""
    ahead, small = look_ahead(adaptive, {}, V100), look_ahead(adaptive, {"width": 256}, V100)
    steps = (ahead.steps[0], small.steps[-1])
    mixed = Ahead(steps[::-1] if is_turned else steps, V100)
    largest = Ahead(steps[:1], V100)
    assert floor_of(mixed) == floor_of(largest)
    assert mixed.planned(1 << 32, How()).plan.floor_bytes == largest.planned(1 << 32, How()).plan.floor_bytes


def test_what_the_process_takes_counts() -> None:
    """As overhead, beside what is estimated."""
    ahead = look_ahead(adaptive, {}, V100)
    assert ahead.taken_bytes == 0
    assert floor_of(replace(ahead, taken_bytes=5 << 20)) - floor_of(ahead) == pytest.approx(5 << 20, rel=0.02)
    assert look_ahead(adaptive, {}, V100, 7 << 20).taken_bytes >= 7 << 20


def test_the_home_of_the_model_says_for_which_device_it_is_planned() -> None:
    homes: list[torch.device] = []

    def target(home: torch.device) -> KnownMachine:
        homes.append(home)
        return V100

    assert look_ahead(adaptive, {}, target).target is V100
    assert homes == [torch.device("cpu")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_model_on_a_gpu_asks_for_a_machine_where_there_is_none() -> None:
    with pytest.raises(InvalidMachine, match=r"cuda.*no GPU here. Name a machine"):
        known_machine(home=torch.device("cuda"))


@pytest.mark.cuda
@pytest.mark.parametrize("move", [nn.Module.cuda, lambda model: model.to("cuda"), nn.Module.to_empty])
def test_a_model_on_a_gpu_is_planned_for_that(move: Callable[..., nn.Module]) -> None:
    def moved() -> Workload:
        made = adaptive(width=512, rows=4096)
        place = {"device": "cuda"} if move is nn.Module.to_empty else {}
        return replace(made, model=move(made.model, **place), batches=[(made.batches[0][0].cuda(),)])

    target = partial(known_machine, None)
    ahead, on_cpu = look_ahead(moved, {}, target, 0), look_ahead(adaptive, {"width": 512, "rows": 4096}, V100)
    assert ahead.target.machine.name == Cuda().name
    in_core, less = (item.planned(budget, How(prove=False)) for item, budget in ((ahead, 1 << 40), (on_cpu, 1 << 40)))
    assert in_core.plan.in_core.peak_bytes == less.plan.in_core.peak_bytes
    assert ahead.floor_bytes() > Cuda.unseen_bytes
