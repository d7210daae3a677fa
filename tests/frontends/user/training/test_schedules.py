"""Schedulers that a step runs are put off while it is captured, and no others."""

from collections.abc import Callable
from threading import Event, Thread

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture


def scheduled() -> tuple[nn.Module, SGD, StepLR]:
    model = nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=1.0)
    return model, optimizer, StepLR(optimizer, 1, gamma=0.5)


def test_schedulers_of_other_threads_make_their_steps() -> None:
    """One that trains beside finds its rate, and steps once, while a step goes on that has put off its own."""
    model, optimizer, scheduler = scheduled()
    _, beside, other = scheduled()
    plateau = ReduceLROnPlateau(beside, patience=0)
    may_begin, over = Event(), Event()
    found: list[object] = []

    def train() -> None:
        may_begin.wait()
        beside.step()
        other.step()
        plateau.step(1.0)
        found.extend((other.get_last_lr(), beside.param_groups[0]["lr"], other.last_epoch))
        beside.step()
        over.set()

    def step(x: Tensor, wait: Callable[[], object]) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        scheduler.step()
        wait()
        return loss

    def wait() -> None:
        may_begin.set()
        over.wait(5)

    thread = Thread(target=train)
    thread.start()
    captured = capture(step, [model], [optimizer], (torch.ones(2, 4), wait))
    thread.join()
    assert found == [[0.5], 0.5, 1]
    assert beside.param_groups[0]["lr"] == 0.5
    assert captured.schedulers == (scheduler,)
    assert optimizer.param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize("look", [round, abs, repr, divmod, torch.tensor], ids=lambda look: look.__name__)
def test_no_way_to_look_at_a_rate_after_its_scheduler(look: Callable[..., object]) -> None:
    """Whatever is asked of it, the answer says to ask after the step."""
    model, optimizer, scheduler = scheduled()

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()
        rate = optimizer.param_groups[0]["lr"]
        _ = look(rate, 2) if look is divmod else look(rate)

    with pytest.raises(Uncapturable, match="ask after the step"):
        capture(step, [model], [optimizer], (torch.ones(2, 4),))


def test_a_scheduler_that_a_step_makes_is_to_be_made_before() -> None:
    """Its constructor sets the rate, as its step does, so the optimizer would come too late."""
    model, optimizer, _ = scheduled()

    def step(x: Tensor) -> None:
        scheduler = StepLR(optimizer, 1)
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()

    with pytest.raises(Uncapturable, match="make it outside of the step"):
        capture(step, [model], [optimizer], (torch.ones(2, 4),))
