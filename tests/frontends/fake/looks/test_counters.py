"""A step may look at what is in a small buffer: it goes the way of eager, by a plan for each way."""

import math
from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow
from outgrow.frontends.tracing.capture import capture
from outgrow.remarks import Remark

pytestmark = pytest.mark.usefixtures("no_room_is_ample")
STEPS, ROWS, WIDTH, KEPT = 6, 4, 8, 12


class Looking(nn.Module):
    """A layer, and what is looked at."""

    number: Tensor
    kept: Tensor

    def __init__(self, seen: Callable[["Looking", Tensor], Tensor], begin: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.seen = seen
        self.register_buffer("number", begin)
        self.register_buffer("kept", torch.randn(WIDTH, KEPT))

    def forward(self, x: Tensor) -> Tensor:
        return self.seen(self, x)


def begun(module: Looking, x: Tensor) -> Tensor:
    """What the first batch gives is kept, and a flag says so."""
    if not module.number:
        with torch.no_grad():
            module.layer.bias.copy_(x.mean(0))
            module.number.fill_(1)
    return module.layer(x)


def begun_by_item(module: Looking, x: Tensor) -> Tensor:
    """The same, if the flag is read first."""
    if module.number.item() == 0:
        with torch.no_grad():
            module.layer.bias.copy_(x.mean(0))
            module.number.fill_(1)
    return module.layer(x)


def queued(module: Looking, x: Tensor) -> Tensor:
    """A queue that is written from where the last step ended."""
    y, at = module.layer(x), int(module.number)
    score = y @ module.kept.clone()
    with torch.no_grad():
        module.kept[:, at : at + ROWS] = y.T
        module.number.fill_((at + ROWS) % KEPT)
    return score


def averaged(module: Looking, x: Tensor) -> Tensor:
    """An average that trusts the past the more the longer it is."""
    with torch.no_grad():
        module.number += 1
        count = module.number.item()
        decay = min(0.5, (1 + count) / (10 + count))
        module.kept.mul_(decay).add_(x.mean(), alpha=1 - decay)
    return module.layer(x) @ module.kept


def every_third(module: Looking, x: Tensor) -> Tensor:
    """Every third step is another one."""
    module.number += 1
    return module.layer(2 * x if module.number.item() % 3 == 0 else x)


def as_many(module: Looking, x: Tensor) -> Tensor:
    """Positions up to a number that grows."""
    positions = torch.arange(int(module.number) + 1)
    module.number += 1
    return module.layer(x) * positions.sum()


def waving(module: Looking, x: Tensor) -> Tensor:
    """Functions of a number, rounded and not."""
    number = module.number.item()
    module.number += 1
    return module.layer(x) * math.cos(number / 10) * round(number / 2)


def every_other(module: Looking, x: Tensor) -> Tensor:
    """The remainder is one of a tensor."""
    module.number += 1
    return module.layer(2 * x if module.number % 2 == 0 else x) * module.number


def masked(module: Looking, x: Tensor) -> Tensor:
    """Columns are chosen by a buffer, and looked for first."""
    y = module.layer(x)
    return y[:, module.number > 0] * 2 if bool((module.number > 0).any()) else y


def saturating(module: Looking, x: Tensor) -> Tensor:
    """Numbers that are written in place, under two names, before they are looked at."""
    module.number += torch.tensor([1, 0, 2])
    module.number.data.clamp_(max=3)
    return module.layer(2 * x if int(module.number.sum()) > 4 else x) * (3 if (module.number > 2).any() else 1)


def ranged(module: Looking, x: Tensor) -> Tensor:
    """What was seen so far is unknown in the first step alone."""
    with torch.no_grad():
        if module.number == float("inf"):
            module.number.copy_(x.min())
        else:
            module.number.copy_(torch.min(module.number, x.min()))
    return module.layer(x.clamp(min=module.number))


@pytest.mark.parametrize(
    ("seen", "begin", "plans"),
    [
        (begun, torch.tensor(False), 2),
        (begun, torch.zeros(1, dtype=torch.uint8), 2),
        (begun_by_item, torch.tensor(0), 2),
        (begun_by_item, torch.tensor(False), 2),
        (queued, torch.zeros(1, dtype=torch.long), 3),
        (averaged, torch.tensor(0), 1),
        (averaged, torch.tensor(4), 2),
        (every_third, torch.tensor(0), 2),
        (as_many, torch.tensor(-1, dtype=torch.int32), STEPS),
        (waving, torch.tensor(0), STEPS),
        (every_third, torch.tensor(1 << 23), 2),
        (every_other, torch.zeros(1, dtype=torch.int32), 2),
        (masked, torch.arange(WIDTH) % 3, 1),
        (masked, torch.zeros(WIDTH), 1),
        (saturating, torch.zeros(3, dtype=torch.long), 3),
        (ranged, torch.tensor(float("inf")), 2),
    ],
)
@pytest.mark.filterwarnings(f"ignore::{Remark.__module__}.{Remark.__name__}")
def test_a_step_goes_the_way_of_eager(
    seen: Callable[[Looking, Tensor], Tensor], begin: Tensor, plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and all state are eager's; numbers that are only calculated with, or compared, share a plan."""
    monkeypatch.setattr("outgrow.planning.search.search._MOST_TRIALS", 50)
    left: list[list[Tensor]] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Looking(seen, begin.clone())
        optimizer = SGD(model.parameters(), 0.1)

        def step(x: Tensor, model: Looking = model, optimizer: SGD = optimizer) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB") if compiled else step
        losses = [run(torch.randn(ROWS, WIDTH)).clone() for _ in range(STEPS)]
        left.append([*losses, *(item.clone() for item in model.state_dict().values())])
        if compiled:
            assert len(run.plans.plans) == plans
    assert all(map(torch.equal, *left))


def test_a_number_that_is_another_one_in_each_call_is_named() -> None:
    """So that the user knows why each call is captured."""
    model = Looking(as_many, torch.tensor(0))
    optimizer = SGD(model.parameters(), 0.1)

    @outgrow.compile(model=model, optimizer=optimizer, memory_budget="1GiB")
    def step(x: Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    batches = torch.randn(STEPS, ROWS, WIDTH)
    with pytest.warns(Remark, match="looks at buffer 'number', where it finds another number"):
        deque(map(step, batches), maxlen=0)


def updated(module: Looking, x: Tensor) -> Tensor:
    """Statistics, by an operator whose schema does not say that it writes them."""
    torch.batch_norm_update_stats(x, module.number, torch.ones_like(module.number), 0.9)
    return module.layer(2 * x if (module.number > 0).any() else x)


def normalized(module: Looking, x: Tensor) -> Tensor:
    """The same, where they are made of literals."""
    mean, variance = torch.zeros(WIDTH), torch.ones(WIDTH)
    x, _, _ = torch.native_batch_norm(x, None, None, mean, variance, True, 0.9, 1e-5)
    return module.layer(2 * x if (mean > 0).any() else x)


@pytest.mark.parametrize("seen", [updated, normalized])
def test_what_was_written_in_silence_is_not_known(seen: Callable[[Looking, Tensor], Tensor]) -> None:
    """What was there before is no answer."""
    model = Looking(seen, torch.zeros(WIDTH))
    assert len(capture(model, [model], [], (torch.randn(ROWS, WIDTH),)).guesses) == 1
