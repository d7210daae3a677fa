"""In an arena of planned addresses beside streams that run late, a step leaves the bits that the eager step leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from outgrow import Infeasible, Workload
from outgrow.errors import DeviceFull, TierFailure
from outgrow.frontends import measure, on_device
from outgrow.frontends.compile import Step
from outgrow.frontends.on_device import OnDevice
from outgrow.frontends.settings import Settings
from outgrow.frontends.state import Training
from outgrow.planning import search
from outgrow.runtime import flights
from tests.bitwise.models import pooled, resnet, transformer
from tests.bitwise.test_budgets import differences, trained
from tests.runtime.stand_in import StandIn, Threads, sleepy

CASES = ((resnet, "56MiB"), (pooled, "78MiB"), (transformer, "51MiB"))
"""Budgets a little above the floor once the state exists: half of the peak in core, and less."""


@pytest.fixture(autouse=True)
def _caches_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No costs are known yet, nor plans; rates of a device that is none need no care."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "_MATRIX_BESIDE", 256)
    monkeypatch.setattr(measure, "_VECTOR_BYTES_BESIDE", 1 << 20)
    monkeypatch.setattr(flights, "MEASURED_BYTES", 1 << 20)
    monkeypatch.setattr(search, "_MOST_TRIALS", 500)


def on(device: StandIn, workload: Workload, budget: int | str, **options: str) -> Step:
    """The step of a workload on a device."""
    training = Training((workload.model,), (workload.optimizer,))
    return Step(workload.step, training, Settings.of(budget, **options), name="", device=device)


@pytest.mark.parametrize(("make", "budget"), CASES, ids=[make.__name__ for make, _ in CASES])
@pytest.mark.usefixtures("several_threads")
def test_planned_addresses_leave_the_bits_of_eager(make: Callable[[], Workload], budget: str) -> None:
    """Losses, state and generator; what is taken is within the budget; every result is born where it is to live."""
    eager = make()
    expected = trained(eager, eager.step)
    ours = make()
    step = on(StandIn(Threads(pauses=sleepy(1))), ours, budget)
    found = trained(ours, step)
    assert differences(found, expected) == []
    assert found.rewritten
    assert step.plan.bytes_swapped > 0
    assert step.traces.measured is not None
    assert step.traces.measured.peak_bytes <= step.plan.predicted.peak_bytes
    assert _arena_bytes(step) + _lasting_bytes(step) <= step.current.budget.limit_bytes
    assert _misplaced(step) == 0


def test_the_floor_has_a_plan() -> None:
    """The budget that a refusal names is enough for the step, with the holes between addresses."""
    budget = 1 << 20
    for _ in range(2):  # without optimizer state, and with it
        ours = resnet()
        with pytest.raises(Infeasible, match="With the holes between addresses the step needs") as refused:
            trained(ours, on(StandIn(), ours, budget))
        budget = refused.value.floor_bytes
    ours = resnet()
    trained(ours, on(StandIn(), ours, budget))


def _arena_bytes(step: Step) -> int:
    platform = step._platform
    assert isinstance(platform, OnDevice)
    return platform._arena.size_bytes


def _misplaced(step: Step) -> int:
    """How many results of the last run were born elsewhere and copied."""
    platform = step._platform
    assert isinstance(platform, OnDevice)
    assert platform.last is not None
    return platform.last.misplaced


def _lasting_bytes(step: Step) -> int:
    graph = step.derived
    return sum(item.size_bytes for name, item in graph.storages.items() if item.is_persistent or name in graph.kept)


def test_without_a_directed_allocator_results_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the allocator cannot be told where results go, they are copied there: the same bits."""
    monkeypatch.setattr(on_device, "install", lambda _device: False)
    eager = resnet()
    expected = trained(eager, eager.step)
    ours = resnet()
    step = on(StandIn(), ours, "56MiB")
    assert differences(trained(ours, step), expected) == []
    assert _misplaced(step) > 0


def test_a_device_that_others_fill_is_named() -> None:
    """The arena is asked for before anything is changed; the message says how much is free."""
    ours = resnet()
    before = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    step = on(StandIn(most_bytes=1 << 20), ours, "64MiB")
    with pytest.raises(DeviceFull, match=r"1\.0 MiB are free"):
        trained(ours, step)
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.model.state_dict().items())


def test_the_host_budget_is_kept() -> None:
    """A plan that moves more than the host may hold is refused, with both sizes."""
    ours = resnet()
    with pytest.raises(TierFailure, match=r"host budget is 4\.0 KiB"):
        trained(ours, on(StandIn(), ours, "56MiB", host_budget="4KiB"))
