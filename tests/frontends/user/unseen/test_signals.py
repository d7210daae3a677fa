"""A signal that comes while a step is captured interrupts the user's code, and nothing else."""

import signal
from collections.abc import Iterator
from operator import itemgetter

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.left.outside import Outside


class Alarm(Exception):
    """What the handler of the user's program raises."""


LOG: list[str] = []
NOTES = (LOG,)


def noted() -> list[str]:
    """Where a step may note something that is not put back, since it names no list."""
    return itemgetter(0)(NOTES)


def sound(_number: int, _frame: object) -> None:
    raise Alarm


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    LOG.clear()
    before = signal.signal(signal.SIGUSR1, sound)
    yield
    assert signal.getsignal(signal.SIGUSR1) is sound
    signal.signal(signal.SIGUSR1, before)


@torch.library.custom_op("outgrow_test::ringing", mutates_args=())
def ringing(x: Tensor) -> Tensor:
    """An operator in whose abstract form a signal comes."""
    return x.clone()


@ringing.register_fake
def _(x: Tensor) -> Tensor:
    signal.raise_signal(signal.SIGUSR1)
    LOG.append("the operator has ended")
    return torch.empty_like(x)


class Scaled(nn.Module):
    """A weight whose gradient is made and used in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


def captured(scaled: Scaled, step: object) -> None:
    optimizer = torch.optim.SGD(scaled.parameters(), lr=0.1, momentum=0.9)
    assert callable(step)
    try:
        capture(step, [scaled], [optimizer], (torch.ones(3),))
    finally:
        assert scaled.weight.grad is None
        assert not isinstance(scaled.weight, FakeTensor)
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert not optimizer.state


def test_a_signal_in_the_users_code_interrupts_it_at_once() -> None:
    """Also one that comes between the passes; models and optimizers are as before."""
    scaled = Scaled()

    def step(x: Tensor) -> None:
        (scaled.weight * x).sum().backward()
        signal.raise_signal(signal.SIGUSR1)
        noted().append("not reached")

    with pytest.raises(Alarm):
        captured(scaled, step)
    assert not LOG


def test_a_signal_in_an_operator_waits_for_the_next_one() -> None:
    """Torch's C++ is left in between by its own ways."""
    scaled = Scaled()

    def step(x: Tensor) -> Tensor:
        found = ringing(x)
        noted().append("so has its call")
        found = found * scaled.weight
        noted().append("not reached")
        return found

    with pytest.raises(Alarm):
        captured(scaled, step)
    assert LOG == ["the operator has ended", "so has its call"]


def test_a_question_about_a_tensor_is_not_interrupted() -> None:
    """Torch asks where nothing must be raised: an error would end the process."""
    scaled = Scaled()

    def step(x: Tensor) -> Tensor:
        found = ringing(x)
        noted().append(str(torch.ops.prim.device.default(found)))
        found = found * scaled.weight
        noted().append("not reached")
        return found

    with pytest.raises(Alarm):
        captured(scaled, step)
    assert LOG == ["the operator has ended", "cpu"]


def test_a_signal_while_all_is_put_back_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it interrupts would leave tensors without contents in the model."""
    scaled, put_back = Scaled(), Outside.put_back

    def ringing_meanwhile(outside: Outside) -> None:
        signal.raise_signal(signal.SIGUSR1)
        LOG.append("goes on")
        put_back(outside)

    monkeypatch.setattr(Outside, "put_back", ringing_meanwhile)

    def step(x: Tensor) -> None:
        (scaled.weight * x).sum().backward()

    with pytest.raises(Alarm):
        captured(scaled, step)
    assert LOG == ["goes on"]
