"""Numbers that a step finds outside are those of the call, and those that it changes are changed once a call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow
from outgrow.frontends import entries
from outgrow.frontends.user.outside import Outside

COUNT = 0
FACTOR = 1.0
loss = 0.0


class Trainer:
    """A model in training, and what a step may find around it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.count, self.seen, self.config = 0, 0, SimpleNamespace(weight=1.0)
        self.table = {"count": 0, "other": 0}

    def trained(self, loss: Tensor, *, updates: bool = True) -> Tensor:
        loss.backward()
        if updates:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def loss(self, x: Tensor) -> Tensor:
        return self.model(x).square().mean() * self.config.weight

    def counted(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.trained(self.loss(x) * self.count)

    def tabled(self, x: Tensor) -> Tensor:
        self.table["count"] += 1
        return self.trained(self.loss(x) * self.table["count"])

    def counted_globally(self, x: Tensor) -> Tensor:
        global COUNT  # noqa: PLW0603
        COUNT += 1
        return self.trained(self.loss(x) * FACTOR, updates=COUNT % 2 == 0)


def closing(trainer: Trainer) -> Callable[[Tensor], Tensor]:
    calls = 0

    def step(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return trainer.trained(trainer.loss(x) * calls)

    return step


STEPS: dict[str, Callable[[Trainer], Callable[[Tensor], Tensor]]] = {
    "attribute": lambda trainer: trainer.counted,
    "entry": lambda trainer: trainer.tabled,
    "global variable": lambda trainer: trainer.counted_globally,
    "closure": closing,
}


def trained(step: Callable[[Tensor], Tensor], trainer: Trainer) -> list[float]:
    """Losses of five calls; before the fourth a configuration is changed."""
    global COUNT  # noqa: PLW0603
    COUNT = 0
    losses: list[float] = []
    for at in range(5):
        trainer.config.weight = 1.0 if at < 3 else 2.0
        losses.append(float(step(torch.ones(2, 4))))
    return losses


@pytest.mark.filterwarnings("ignore:.*captured")
@pytest.mark.parametrize("room", [1 << 50, 0], ids=["planned", "as written"])
@pytest.mark.parametrize("name", STEPS)
def test_numbers_that_a_step_changes_are_those_of_eager(name: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call finds what the one before has left, whether its Python runs in it or not."""
    monkeypatch.setattr(entries, "_ROOMY_BYTES", room)
    eager, planned = Trainer(), Trainer()
    expected = trained(STEPS[name](eager), eager)
    step = outgrow.compile(STEPS[name](planned), model=planned.model, optimizer=planned.optimizer, memory_budget="4GiB")
    assert trained(step, planned) == expected
    assert (planned.count, planned.table, COUNT in (0, 5)) == (eager.count, eager.table, True)


@pytest.mark.filterwarnings("ignore:.*captured")
def test_a_step_that_changes_a_number_is_told_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be captured in every call."""
    monkeypatch.setattr(entries, "_ROOMY_BYTES", 1 << 50)
    trainer = Trainer()
    step = outgrow.compile(trainer.counted, model=trainer.model, optimizer=trainer.optimizer, memory_budget="4GiB")
    with pytest.warns(UserWarning, match=r"changes `self.count`") as told:
        trained(step, trainer)
    assert sum("self.count" in str(item.message) for item in told) == 1


def names(step: Callable[..., object]) -> set[str]:
    return {place.name for place, _ in Outside.of(step).numbers}


def test_only_what_is_named_is_found() -> None:
    """Through methods that are called; a variable of the step's own that is called like a global one is another."""
    trainer = Trainer()
    assert names(trainer.counted) == {"self.count", "self.config.weight"}
    assert names(trainer.tabled) == {"self.table.count", "self.config.weight"}
    assert "seen" not in str(names(trainer.counted_globally))
    assert {"COUNT", "FACTOR"} <= names(trainer.counted_globally)


def test_parameters_that_are_given_are_followed() -> None:
    """Those of partial functions, defaults that can be changed, and objects that are called."""

    @dataclass
    class Scaled:
        weight: float = 1.0
        inner: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(rate=0.5))

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.weight * self.inner.rate

    def given(config: SimpleNamespace, x: Tensor, *, state: dict[str, int] = {"step": 0}) -> Tensor:  # noqa: B006
        state["step"] += 1
        return x * config.rate * state["step"]

    assert names(Scaled()) == {"self.weight", "self.inner.rate"}
    assert names(partial(given, SimpleNamespace(rate=2.0))) == {"given.rate", "state.step"}


def test_numbers_are_compared_to_the_last_bit() -> None:
    """A zero of another sign, and another type, are other numbers; what is no number is itself."""
    config = SimpleNamespace(rate=0.0)

    def step(x: Tensor) -> Tensor:
        return x * config.rate

    outside = Outside.of(step)
    for value, holds in ((0.0, True), (-0.0, False), (0, False), (1.0, False), (0.0, True)):
        config.rate = value
        assert outside.still_hold() is holds
    config.rate = 3.0
    assert [(item.place.name, item.value) for item in outside.changed()] == [("config.rate", 3.0)]
    outside.put_back()
    assert config.rate == 0.0
    del config.rate
    assert not outside.still_hold()
