"""A run that finds a guess wrong looks at the others of its line, so a call is captured once for all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import outgrow
from outgrow.errors import Uncapturable
from outgrow.frontends import calls
from outgrow.runtime.execute import Outcome
from outgrow.runtime.repeated import Running

ROWS, WIDTH = 20, 4
Made = tuple[nn.Module, Optimizer, Callable[[Tensor, Tensor], Tensor]]


def net() -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, ROWS)
    return model, SGD(model.parameters(), lr=0.1, momentum=0.9)


def clipping() -> Made:
    """A step that decides for each row of a gradient whether it is too large."""
    model, optimizer = net()

    def step(x: Tensor, limits: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        assert model.weight.grad is not None
        for gradient, limit in zip(model.weight.grad, limits, strict=True):
            factor = limit / (gradient.norm() + 1e-6)
            if factor < 1:
                gradient.mul_(factor)
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


def finding() -> Made:
    """A step that looks places up, unless there are none."""
    model, optimizer = net()

    def step(x: Tensor, places: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = model(x).sum(0)
        found = [scores.take(place.long()) for place in places + 0 * scores.sum().detach() if not place > ROWS - 1]
        loss = torch.stack([scores.mean(), *found]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


def planned(made: Made, folder: Path) -> outgrow.Step[[Tensor, Tensor], Tensor]:
    model, optimizer, step = made
    return outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=folder)


def batch(call: int) -> tuple[Tensor, Tensor]:
    """Half of the limits are below any gradient, and half are above."""
    torch.manual_seed(call)
    return torch.randn(3, WIDTH), torch.where(torch.rand(ROWS) < 0.5, 1e-4, 1e4)


@pytest.mark.usefixtures("no_room_is_ample")
@pytest.mark.filterwarnings("ignore::outgrow.remarks.Remark")
def test_a_step_that_decides_for_each_of_many_is_captured_once_a_call(tmp_path: Path) -> None:
    """Each call goes a way that none has gone before, and has the bits of eager."""
    (model, _, eager), made = clipping(), clipping()
    step = planned(made, tmp_path)
    for call in range(5):
        assert torch.equal(step(*batch(call)), eager(*batch(call)))
        assert all(map(torch.equal, made[0].state_dict().values(), model.state_dict().values()))
        assert len(step.plans.plans) <= call + 3


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_way_that_a_step_goes_on_going_is_gone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an earlier way has let gradients go, so that a call was repeated in another state than it began."""
    runs = list[object]()
    own = calls.carried_out

    def noted(feed: calls.Feed, run: Running) -> Outcome:
        runs.append(feed)
        return own(feed, run)

    monkeypatch.setattr(calls, "carried_out", noted)
    (_, _, eager), step = clipping(), planned(clipping(), tmp_path)
    ran: list[int] = []
    for limit in (1e4, 1e4, 1e-4, 1e-4, 1e-4):
        x, limits = torch.ones(3, WIDTH), torch.full((ROWS,), limit)
        assert torch.equal(step(x, limits), eager(x, limits))
        ran.append(len(runs))
    assert ran == [1, 2, 4, 5, 6]


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_step_that_is_captured_anew_is_captured_for_the_way_that_it_went_twice(tmp_path: Path) -> None:
    """The second call finds state of the optimizer, the fourth has another shape: they are other steps."""
    (_, _, eager), step = clipping(), planned(clipping(), tmp_path)
    ways: list[int] = []
    for rows in (3, 3, 3, 2):
        given = torch.ones(rows, WIDTH), torch.full((ROWS,), 1e-4)
        assert torch.equal(step(*given), eager(*given))
        ways.append(len(step.plans.plans))
    assert ways == [2, 4, 4, 5]


@pytest.mark.usefixtures("no_room_is_ample")
@pytest.mark.filterwarnings("ignore::outgrow.remarks.Remark")
def test_an_error_of_a_way_that_the_step_does_not_go_is_none(tmp_path: Path) -> None:
    """A run that looks on does what was guessed, though it knows better."""
    (model, _, eager), made = finding(), finding()
    step, x = planned(made, tmp_path), torch.ones(3, WIDTH)
    for places in ((0.0, 1.0, 2.0), (30.0, 3.0, 40.0), (1.0, 50.0, 2.0)):
        assert torch.equal(step(x, torch.tensor(places)), eager(x, torch.tensor(places)))
    assert all(map(torch.equal, made[0].state_dict().values(), model.state_dict().values()))


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_refusal_of_a_way_that_is_only_likely_is_none(tmp_path: Path) -> None:
    """What is found behind a wrong guess may be what the step would not have come to."""

    def made() -> Made:
        model, optimizer = net()

        def step(x: Tensor, number: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            total = number + 0 * loss.detach()
            for turn, limit in enumerate((0.5, 2.0)):
                if total > limit:
                    total = total + 4
                    assert turn == 0 or float(total) > 0
            (loss * (total + 1)).backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    (_, _, eager), step = made(), planned(made(), tmp_path)
    given = torch.ones(3, WIDTH), torch.tensor(0.0)
    assert torch.equal(step(*given), eager(*given))
    with pytest.raises(Uncapturable, match=r"if total > limit.*goes another way.*float\(total\)"):
        step(torch.ones(3, WIDTH), torch.tensor(1.0))
