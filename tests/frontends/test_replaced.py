"""What takes the place of something else between two calls is what the next one works with, as in eager mode."""

from collections import ChainMap, UserDict
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR, LRScheduler, OneCycleLR

import outgrow
from outgrow.errors import Uncapturable

Wrap = Callable[[Callable[[Tensor], Any], nn.Module, torch.optim.Optimizer], Callable[[Tensor], Any]]
CALLS = 4
pytestmark = pytest.mark.usefixtures("no_room_is_ample")


def compiled(step: Callable[[Tensor], Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The step within a budget."""
    return outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB")


def as_written(step: Callable[[Tensor], Any], _model: nn.Module, _optimizer: torch.optim.Optimizer) -> Any:
    """The step itself."""
    return step


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    """One step of a training."""
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


class Beginning(nn.Module):
    """Halves what it is given the first time, and notes its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.has_begun = nn.Linear(4, 4), False
        self.log: list[str] = []
        self.notes: dict[str, list[str]] = {"calls": []}

    def forward(self, x: Tensor) -> Tensor:
        if not self.has_begun:
            x, self.has_begun = x / 2, True
        self.log.append("called")
        self.notes["calls"].append("called")
        return self.linear(x)


def made() -> tuple[Beginning, torch.optim.SGD]:
    """A model and its optimizer."""
    model = Beginning()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)


def a_scheduler(wrap: Wrap) -> Iterator[object]:
    """The next phase of a training has another one."""
    model, optimizer = made()
    scheduler: LRScheduler = ExponentialLR(optimizer, 0.5)

    def whole(x: Tensor) -> Tensor:
        loss = trained(model, optimizer, x)
        scheduler.step()
        return loss

    step = wrap(whole, model, optimizer)
    for at in range(CALLS):
        if at == 2:
            scheduler = ExponentialLR(optimizer, 0.1)
        yield step(torch.ones(2, 4)), optimizer.param_groups[0]["lr"]


def a_scaler(wrap: Wrap) -> Iterator[object]:
    """Another scale, which grows sooner."""
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def whole(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    step = wrap(whole, model, optimizer)
    for at in range(CALLS):
        if at == 2:
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        yield step(torch.ones(2, 4)), scaler.get_scale()


def a_module(wrap: Wrap) -> Iterator[object]:
    """One that is alike begins anew."""
    inner, optimizer = made()
    model = nn.Sequential(inner)
    step = wrap(lambda x: trained(model, optimizer, x), model, optimizer)
    for at in range(CALLS):
        if at == 2:
            inner = model[0] = Beginning()
            optimizer.param_groups[0]["params"] = list(model.parameters())
            optimizer.state.clear()
        yield step(torch.ones(2, 4)), inner.has_begun, list(inner.log)


def a_container(wrap: Wrap) -> Iterator[object]:
    """An empty list, also within another container, while somebody keeps the earlier one."""
    model, optimizer = made()
    step = wrap(lambda x: trained(model, optimizer, x), model, optimizer)
    kept: list[list[str]] = []
    for _ in range(CALLS):
        kept += [model.log, model.notes["calls"]]
        model.log, model.notes["calls"] = [], []
        yield step(torch.ones(2, 4)), list(model.log), list(model.notes["calls"]), list(map(len, kept))


def a_default(wrap: Wrap) -> Iterator[object]:
    """One of the optimizer, which the step reads."""
    model, optimizer = made()
    step = wrap(lambda x: trained(model, optimizer, x) * optimizer.defaults["lr"], model, optimizer)
    for at in range(CALLS):
        optimizer.defaults["lr"] = 0.1 * (at + 1)
        yield step(torch.ones(2, 4))


def an_entry(wrap: Wrap) -> Iterator[object]:
    """Of tables that are no dictionaries."""
    model, optimizer = made()
    entries = {"weight": 1.0}
    tables = (UserDict(entries), ChainMap(entries), MappingProxyType(entries))
    step = wrap(lambda x: trained(model, optimizer, x) * sum(table["weight"] for table in tables), model, optimizer)
    for at in range(CALLS):
        entries["weight"] = tables[0]["weight"] = at + 1.0
        yield step(torch.ones(2, 4))


@pytest.mark.parametrize("program", [a_scheduler, a_scaler, a_module, a_container, a_default, an_entry])
def test_what_is_replaced_is_seen(program: Callable[[Wrap], Iterator[object]]) -> None:
    """Losses, numbers and containers are those of eager mode."""
    torch.manual_seed(0)
    expected = list(program(as_written))
    torch.manual_seed(0)
    assert list(program(compiled)) == expected


def test_an_optimizer_that_was_not_named_is_refused() -> None:
    """A plan does not go on with the one that it had before."""
    model, optimizer = made()
    named = optimizer
    step = compiled(lambda x: trained(model, optimizer, x), model, named)
    step(torch.ones(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(Uncapturable, match="that was not named"):
        step(torch.ones(2, 4))


def test_a_rate_is_not_set_after_its_scheduler() -> None:
    """The scheduler makes its step after all else, and would be the last to set it."""
    model, optimizer = made()
    scheduler = ExponentialLR(optimizer, 0.5)

    def whole(x: Tensor) -> Tensor:
        loss = trained(model, optimizer, x)
        scheduler.step()
        optimizer.param_groups[0]["lr"] = 0.07
        return loss

    with pytest.raises(Uncapturable, match=r"sets 'lr' after scheduler.step\(\)"):
        compiled(whole, model, optimizer)(torch.ones(2, 4))


@pytest.mark.parametrize(
    "reading", [lambda rate: rate // 0.01, lambda rate: 1 // rate, lambda rate: divmod(rate, 0.01)]
)
def test_a_rate_is_divided_as_in_eager_mode(reading: Callable[[float], object]) -> None:
    """Python's quotient is not that of a symbol; another rate makes another step."""
    model, optimizer = made()
    group = optimizer.param_groups[0]
    step = compiled(lambda x: (trained(model, optimizer, x), reading(group["lr"])), model, optimizer)
    for rate in (0.03, 0.1, 0.1):
        group["lr"] = rate
        assert step(torch.ones(2, 4))[1] == reading(rate)


@pytest.mark.parametrize("reading", [str, repr, "{}".format])
def test_the_text_of_a_rate_is_refused(reading: Callable[[float], str]) -> None:
    """It would be that of a symbol."""
    model, optimizer = made()
    group = optimizer.param_groups[0]
    step = compiled(lambda x: (trained(model, optimizer, x), reading(group["lr"])), model, optimizer)
    with pytest.raises(Uncapturable, match="do it after the step"):
        step(torch.ones(2, 4))


@pytest.mark.parametrize("make", [OneCycleLR, CyclicLR])
def test_a_momentum_is_not_read_after_its_scheduler(make: Callable[..., LRScheduler]) -> None:
    """It will be another one in each call."""
    model, optimizer = made()
    scheduler = make(optimizer, 0.1, 10)

    def whole(x: Tensor) -> tuple[Tensor, float]:
        loss = trained(model, optimizer, x)
        scheduler.step()
        return loss, optimizer.param_groups[0]["momentum"]

    step = outgrow.compile(whole, model=model, optimizer=optimizer, memory_budget="1GiB")
    with pytest.raises(Uncapturable, match="ask after the step"):
        step(torch.ones(2, 4))
