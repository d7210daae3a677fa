"""Whatever the budget, a step leaves the bits that the eager step leaves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch

from outgrow import Infeasible, Workload
from outgrow.frontends.compile import Step, compile_workload
from outgrow.frontends.user.training.state import StateSlot, Training, state_tensors
from tests.bitwise.models import MODELS

STEPS = 3
AMPLE = 1 << 40
SHARES = (0.01, 0.8)
"""Budgets as shares of the peak in core; the first is below any floor, and becomes the floor that is named."""
TRIES, SLACK = 6, 4 << 20
"""What a process holds besides differs a little each time, and optimizer state exists from the second step on."""


@dataclass(frozen=True)
class Trained:
    """What a training leaves: losses, all tensors of model and optimizer, and the generator's state."""

    losses: tuple[str, ...]
    state: dict[StateSlot, torch.Tensor]
    generator: torch.Tensor
    rewritten: bool = False


def trained(workload: Workload, step: Callable[..., torch.Tensor]) -> Trained:
    """Take some steps, and return what they leave."""
    torch.manual_seed(1)
    losses, rewritten = [], False
    for batch in islice(cycle(workload.batches), STEPS):
        losses.append(float(step(*batch).detach()).hex())
        rewritten |= isinstance(step, Step) and not step.current.is_empty
    held = state_tensors(Training((workload.model,), (workload.optimizer,)))
    return Trained(tuple(losses), dict(held), torch.get_rng_state(), rewritten)


def differences(found: Trained, expected: Trained) -> list[object]:
    """What is not bitwise equal, by name."""
    slots = found.state.keys() | expected.state.keys()
    missing = [slot for slot in slots if slot not in found.state or slot not in expected.state]
    wrong = [slot for slot in slots if slot not in missing and not torch.equal(found.state[slot], expected.state[slot])]
    losses = [] if found.losses == expected.losses else ["losses"]
    return [*missing, *wrong, *losses, *([] if torch.equal(found.generator, expected.generator) else ["generator"])]


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


@pytest.mark.usefixtures("several_threads", "plans_found_quickly")
def test_every_budget_gives_the_bits_of_eager(
    model: Callable[[], Workload], compiled: Callable[[Workload, int], Step]
) -> None:
    """Losses, parameters, buffers, optimizer state, gradients and generator are those of the eager loop."""
    eager = model()
    expected = trained(eager, eager.step)
    ours = model()
    step = compiled(ours, AMPLE)
    assert differences(trained(ours, step), expected) == []
    in_core = step.plan.in_core_peak_bytes
    for share in SHARES:
        assert differences(_within(int(share * in_core), model, compiled), expected) == [], share


def _within(budget: int, model: Callable[[], Workload], compiled: Callable[[Workload, int], Step]) -> Trained:
    """Train within a budget, or within the next that a refusal names; the step is rewritten."""
    for _ in range(TRIES):
        ours = model()
        step = compiled(ours, budget)
        try:
            found = trained(ours, step)
        except Infeasible as refusal:
            assert refusal.floor_bytes > budget
            budget = refusal.floor_bytes + SLACK
            continue
        if not found.rewritten:  # the process held more when it named the floor than it does now
            budget = budget * 9 // 10
            continue
        assert step.traces.measured is not None
        assert step.traces.measured.peak_bytes <= step.plan.predicted.peak_bytes
        return found
    raise AssertionError("a step runs within the floor that it names, or names a higher one once its state exists")
