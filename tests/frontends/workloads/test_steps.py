"""Are the steps that are captured without memory those that a training takes, the second one too?"""

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, nn, optim

from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import OptimizerSlot
from outgrow.frontends.workloads.steps import capture_steps
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.text import print_graph
from tests.frontends.features import InPython

WITH_STATE: Mapping[str, Callable[..., optim.Optimizer]] = {
    "SGD, momentum": partial(optim.SGD, momentum=0.9),
    "Adam": optim.Adam,
    "Adam, one by one": partial(optim.Adam, foreach=False),
    "Adam, amsgrad": partial(optim.Adam, amsgrad=True),
    "AdamW, fused": partial(optim.AdamW, fused=True),
    "RAdam": optim.RAdam,
    "NAdam": optim.NAdam,
    "Adamax": optim.Adamax,
    "Adadelta": optim.Adadelta,
    "Adafactor": optim.Adafactor,
    "RMSprop": partial(optim.RMSprop, momentum=0.9),
    "ASGD": optim.ASGD,
    "Rprop": optim.Rprop,
    "numbers of Python": InPython,
}


def normalised(make: Callable[..., optim.Optimizer]) -> Workload:
    """Return the training of a small network with buffers."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    optimizer = make(model.parameters(), lr=0.01)

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Workload(model, optimizer, step, batches=[(torch.randn(2, 3, 8, 8),)])


@pytest.mark.parametrize("name", WITH_STATE)
def test_the_second_step_finds_what_the_first_made(name: str) -> None:
    """To the letter the graphs of a real training, whatever the optimizer keeps and counts."""
    workload = normalised(WITH_STATE[name])
    real: list[str] = []
    for _ in range(2):
        found = capture(workload.step, [workload.model], [workload.optimizer], tuple(workload.batches[0]))
        real.append(print_graph(found.graph))
        workload.step(*workload.batches[0])
    first, second = capture_steps(normalised, {"make": WITH_STATE[name]})
    assert [print_graph(first.graph), print_graph(second.graph)] == real
    assert any(isinstance(slot, OptimizerSlot) for slot in second.slots.values())


def test_without_state_there_is_one_step() -> None:
    """Every call of it is the same."""
    assert len(capture_steps(normalised, {"make": optim.SGD})) == 1


def test_the_second_step_sees_what_the_first_leaves_in_attributes() -> None:
    """A module that counts its calls by a number is called with the next one."""

    def counting() -> Workload:
        workload = normalised(optim.Adam)
        step, model = workload.step, workload.model
        vars(model)["calls"] = 0

        def counted(x: Tensor) -> Tensor:
            vars(model)["calls"] += 1
            return step(x * float(vars(model)["calls"]))

        return Workload(model, workload.optimizer, counted, workload.batches)

    first, second = capture_steps(counting, {})
    assert "(%batch.0, 1.0)" in print_graph(first.graph)
    assert "(%batch.0, 2.0)" in print_graph(second.graph)
