"""Objects that a loop finds in a list, a table or a tuple are those of the call, and what they keep is left there."""

from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow
from outgrow.frontends.tracing.capture import capture

pytestmark = [pytest.mark.usefixtures("no_room_is_ample"), pytest.mark.filterwarnings("ignore:.*captured")]
CALLS = 6


class Stage(Enum):
    """What a training is in."""

    FIRST = "first"


class Loss:
    """A loss with a weight, that counts its calls."""

    def __init__(self, weight: float) -> None:
        self.weight, self.calls = weight, 0
        self.kept: list[Tensor] = []

    def __call__(self, found: Tensor) -> Tensor:
        self.calls += 1
        return found.square().mean() * self.weight


class Meter:
    """A mean."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float, count: int = 1) -> None:
        self.total, self.count = self.total + value * count, self.count + count


class Job:
    """What a training has in containers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.losses, self.named = [Loss(1.0), Loss(0.5)], {"a": Loss(1.0), "b": Loss(2.0)}
        self.pairs = [(Loss(1.0), 2.0), (Loss(3.0), 0.5)]
        self.staged = {Stage.FIRST: Loss(1.0)}
        self.paired = {"a": (Loss(1.0), 2.0)}
        self.meters, self.meter_of = (Meter(), Meter()), {"all": Meter(), "last": Meter()}
        self.histories: list[list[float]] = [[], []]
        self.latest = [deque[float](maxlen=2), deque[float](maxlen=2)]

    def trained(self, loss: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def changed(self) -> None:
        """Change the weights of all losses."""
        pairs = (*self.pairs, *self.paired.values())
        for loss in (*self.losses, *self.named.values(), *self.staged.values(), *(loss for loss, _ in pairs)):
            loss.weight *= 0.75


Way = Callable[[Job, Tensor], Any]
"""How losses of a model's result are computed."""


def added(losses: list[Loss], found: Tensor) -> Tensor:
    """The sum of losses that are given."""
    total = torch.zeros(())
    for loss in losses:
        total = total + loss(found)
    return total


def by_a_loop(job: Job, found: Tensor) -> Any:
    """In a loop over a part of them, and by an attribute."""
    total = torch.zeros(())
    for loss in job.losses[:1]:
        total = total + found.sum() * loss.weight
    return total


def by_items(job: Job, found: Tensor) -> Any:
    """In a loop over names and losses."""
    total = torch.zeros(())
    for _, loss in job.named.items():  # noqa: PERF102 - the loop is what is tested
        total = total + loss(found)
    return total


def by_pairs(job: Job, found: Tensor) -> Any:
    """In a loop over pairs, and one over a table of pairs."""
    total = torch.zeros(())
    for loss, weight in job.pairs:
        total = total + loss(found) * weight
    for _, (loss, weight) in job.paired.items():  # noqa: PERF102 - the loop is what is tested
        total = total + loss(found) * weight
    return total


def by_unpacking(job: Job, found: Tensor) -> Any:
    """By names for two of them."""
    one, other = job.losses
    return one(found) + other(found)


WAYS: dict[str, Way] = {
    "a loop": by_a_loop,
    "items": by_items,
    "pairs": by_pairs,
    "unpacking": by_unpacking,
    "a function": lambda job, found: added(job.losses, found),
    "a generator": lambda job, found: sum(loss(found) for loss in job.losses),
    "a list": lambda job, found: torch.stack([loss(found) for loss in job.named.values()]).sum(),
    "a table": lambda job, found: sum({name: loss(found) for name, loss in job.named.items()}.values()),
    "numbered": lambda job, found: sum(at * loss.weight * found.sum() for at, loss in enumerate(job.losses)),
    "zipped": lambda job, found: sum([weight * loss(found) for loss, weight in zip(job.losses, (1, 2), strict=True)]),
    "a copy": lambda job, found: sum(loss(found) for loss in reversed(list(job.losses))),
    "a member": lambda job, found: job.staged[Stage.FIRST](found),
    "an index": lambda job, found: job.pairs[0][0](found) + job.paired["a"][0](found),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_attributes_of_what_a_loop_finds_count(way: Way) -> None:
    """A weight that is changed makes another step."""
    job = Job()
    captured = capture(lambda x: way(job, job.model(x)), [job.model], [], (torch.ones(1, 8),))
    assert captured.outside.other() is None
    job.changed()
    assert captured.outside.other() is not None


def metered(job: Job, found: Tensor) -> Tensor:
    """Losses with a mean of each, and of all."""
    losses = [loss(found) for loss in job.losses]
    for meter, loss in zip(job.meters, losses, strict=True):
        meter.update(loss.item())
    for meter in job.meter_of.values():
        meter.update(losses[0].item(), len(found))
    return job.trained(torch.stack(losses).sum())


def noted(job: Job, found: Tensor) -> Tensor:
    """Losses that are noted in lists of lists."""
    total = torch.zeros(())
    for at, loss in enumerate(job.losses):
        value = loss(found)
        job.histories[at].append(value.item())
        total = total + value
    for latest in job.latest:
        latest.append(total.item())
    return job.trained(total)


def kept(job: Job, found: Tensor) -> Tensor:
    """Losses that keep what they were, and weigh less each time."""
    total = torch.zeros(())
    for loss in job.losses:
        value = loss(found)
        loss.kept.append(value.detach())
        loss.weight *= 0.9
        total = total + value
    return job.trained(total)


@pytest.mark.parametrize("step", [metered, noted, kept])
def test_what_is_kept_in_containers_is_left_as_in_eager_mode(
    step: Callable[[Job, Tensor], Tensor], tmp_path: Path
) -> None:
    """In objects and lists, while weights change between the calls."""
    eager, planned = Job(), Job()

    def called(x: Tensor) -> Tensor:
        return step(planned, planned.model(x))

    ours = outgrow.compile(
        called, model=planned.model, optimizer=planned.optimizer, memory_budget="8GiB", offload_dir=tmp_path
    )
    for at in range(CALLS):
        x = torch.randn(4, 8)
        if at == CALLS // 2:
            eager.changed()
            planned.changed()
        assert torch.equal(ours(x), step(eager, eager.model(x)))
    for found, expected in zip(planned.losses, eager.losses, strict=True):
        assert (found.weight, found.calls) == (expected.weight, expected.calls)
        assert all(map(torch.equal, found.kept, expected.kept))
        assert len(found.kept) == len(expected.kept)
    assert list(map(vars, planned.meters)) == list(map(vars, eager.meters))
    assert [vars(item) for item in planned.meter_of.values()] == [vars(item) for item in eager.meter_of.values()]
    assert (planned.histories, planned.latest) == (eager.histories, eager.latest)
    for one, other in zip(planned.model.parameters(), eager.model.parameters(), strict=True):
        assert torch.equal(one, other)
