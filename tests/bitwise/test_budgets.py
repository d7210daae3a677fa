"""Whatever the budget, a step leaves the bits that the eager step leaves."""

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch

from outgrow import Infeasible, Workload
from outgrow.frontends.compile import Step, compile_workload
from outgrow.frontends.state import StateSlot, Training, state_tensors
from tests.bitwise.models import MODELS

STEPS = 3
SHARES = {"near the floor": 0.02, "half way": 0.5, "more than enough": 4.0}
"""Budgets between the floor (0) and the peak in core (1)."""
REWRITTEN = ("near the floor", "half way")


def trained(
    workload: Workload, step: Callable[..., torch.Tensor]
) -> tuple[list[str], dict[StateSlot, torch.Tensor], torch.Tensor]:
    """Losses of some steps, all tensors of model and optimizer, and the generator's state afterwards."""
    torch.manual_seed(1)
    losses = [float(step(*batch).detach()).hex() for batch in islice(cycle(workload.batches), STEPS)]
    held = state_tensors(Training((workload.model,), (workload.optimizer,)))
    return losses, dict(held), torch.get_rng_state()


@pytest.fixture
def compiled(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Workload, int], Step]]:
    """Compile workloads, knowing no costs yet, and give their disk space back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
    steps: list[Step] = []

    def make(workload: Workload, budget: int) -> Step:
        steps.append(compile_workload(workload, memory_budget=budget, offload_dir=disk_folder))
        return steps[-1]

    yield make
    for step in steps:
        step.close()


@pytest.fixture(scope="module", params=MODELS, ids=lambda make: make.__name__)
def model(request: pytest.FixtureRequest) -> Callable[[], Workload]:
    """One of the models."""
    return request.param


def test_every_budget_gives_the_bits_of_eager(
    model: Callable[[], Workload], compiled: Callable[[Workload, int], Step]
) -> None:
    """Losses, parameters, buffers, optimizer state, gradients and generator are those of the eager loop."""
    eager = model()
    losses, state, generator = trained(eager, eager.step)
    with pytest.raises(Infeasible) as refusal:
        trained(refused := model(), compiled(refused, 1 << 20))
    assert refusal.value.floor_bytes > 1 << 20
    floor, peak = refusal.value.floor_bytes, 0
    for name, share in reversed(SHARES.items()):
        budget = floor + int(share * (max(peak, floor + (1 << 20)) - floor)) if peak else 1 << 40
        ours = model()
        step = compiled(ours, budget)
        found_losses, found, found_generator = trained(ours, step)
        peak = peak or step.plan.in_core_peak_bytes + step.plan.overhead_bytes
        assert found_losses == losses, name
        assert found.keys() == state.keys(), name
        assert [slot for slot in state if not torch.equal(found[slot], state[slot])] == [], name
        assert torch.equal(found_generator, generator), name
        assert name not in REWRITTEN or step.plan.bytes_swapped or step.plan.seconds_recomputed, name
        assert step.traces.measured is not None
        assert name not in REWRITTEN or step.traces.measured.peak_bytes <= step.plan.predicted.peak_bytes, name
