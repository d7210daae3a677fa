"""A number that a step only counts up makes no other step of a call; one that it looks at does."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import SGD

import outgrow

pytestmark = [pytest.mark.usefixtures("no_room_is_ample"), pytest.mark.filterwarnings("ignore:.*captured")]
CALLS = 0
Step = Callable[[Tensor], Tensor]


class Counting(nn.Module):
    """A layer that counts how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.looks = nn.Linear(4, 4), False
        self.calls = self.left_out = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) * (self.calls if self.looks and len(x) == 3 else 1)


class Trainer:
    """Counts in several ways."""

    steps = 0

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Counting()
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.count: Any = 0
        self.seen = 0
        self.table: dict[str, Any] = {"count": 0}

    def trained(self, x: Tensor, factor: float = 1.0) -> Tensor:
        loss = self.model(x).square().mean() * factor
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def by_attributes(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen = self.seen + len(x)
        self.steps += 2
        self.table["count"] -= 1
        return self.trained(x)

    def clearing_first(self, x: Tensor) -> Tensor:
        self.count += 1
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def counting_what_it_leaves_out(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        if torch.isfinite(loss):
            self.count += 1
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            self.seen += 1
            self.table["count"] += 1
            self.model.left_out += 1
        return loss.detach()

    def by_a_global(self, x: Tensor) -> Tensor:
        global CALLS  # noqa: PLW0603
        CALLS += 1
        return self.trained(x)

    def looking(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen += 1
        return self.trained(x, 2.0 if self.count % 3 == 0 else 1.0)

    def looking_at_a_number(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.trained(x, 2.0 if isinstance(self.count, int) and self.count % 3 == 0 else 1.0)

    def looking_in_vain(self, x: Tensor) -> Tensor:
        self.count += 1
        factor = 1.0
        with contextlib.suppress(Exception):
            factor = 2.0 if self.count % 3 == 0 else 1.0
        return self.trained(x, factor)

    def keeping(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen = self.count
        return self.trained(x)

    def counted(self) -> tuple[object, ...]:
        return (self.count, self.seen, self.steps, self.table, self.model.calls, self.model.left_out, CALLS)


def closing(trainer: Trainer) -> Step:
    calls = 0

    def step(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return trainer.trained(x)

    return step


COUNTING: dict[str, Callable[[Trainer], Step]] = {
    "attributes": lambda trainer: trainer.by_attributes,
    "global variable": lambda trainer: trainer.by_a_global,
    "closure": closing,
}
LOOKING: dict[str, Callable[[Trainer], Step]] = {
    "remainder": lambda trainer: trainer.looking,
    "remainder of a number": lambda trainer: trainer.looking_at_a_number,
    "caught": lambda trainer: trainer.looking_in_vain,
    "kept": lambda trainer: trainer.keeping,
}


def planned(step: Step, trainer: Trainer) -> outgrow.Step[..., Tensor]:
    return outgrow.compile(step, model=trainer.model, optimizer=trainer.optimizer, memory_budget="10TiB")


def played(step: Step, trainer: Trainer) -> list[object]:
    """Losses and numbers of seven calls."""
    global CALLS  # noqa: PLW0603
    CALLS = 0
    return [(float(step(torch.ones(2, 4))), *trainer.counted()) for _ in range(7)]


@pytest.mark.parametrize("name", COUNTING)
def test_a_step_that_counts_is_captured_once(name: str) -> None:
    """Outside, or in a module; each number goes on as in eager mode."""
    eager, trainer = Trainer(), Trainer()
    step = planned(COUNTING[name](trainer), trainer)
    assert played(step, trainer) == played(COUNTING[name](eager), eager)
    assert len(step.plans.plans) == 1


def test_a_step_that_counts_and_begins_with_zero_grad_is_captured_twice() -> None:
    """Once without gradients, and once with those of a step before, which it lets go."""
    trainer = Trainer()
    step = planned(trainer.clearing_first, trainer)
    played(step, trainer)
    assert (trainer.count, len(step.plans.plans)) == (7, 2)


def now_and_then(trainer: Trainer) -> Step:
    """Has other factors in every third call, in the first four ones, and after the sixth."""

    def step(x: Tensor) -> Tensor:
        trainer.count += 1
        factor = 2.0 if trainer.count % 3 == 0 else 1.0
        trainer.steps += 1
        return trainer.trained(x, factor if 4 < trainer.steps <= 6 else 3.0)

    return step


def test_a_step_that_compares_what_it_counts_is_captured_once_for_each_answer() -> None:
    """Be it the number or what is left when it is divided: in the other calls no plan is new."""
    eager, trainer = Trainer(), Trainer()
    step = planned(now_and_then(trainer), trainer)
    assert played(step, trainer) == played(now_and_then(eager), eager)
    answers = {(count % 3 == 0, count > 4, count <= 6) for count in range(1, 8)}
    assert len(step.plans.plans) == len(answers)


def test_what_is_left_of_a_count_may_be_kept() -> None:
    """As a place in a ring is; every call is another step then."""
    eager, trainer = Trainer(), Trainer()

    def turning(trainer: Trainer) -> Step:
        def step(x: Tensor) -> Tensor:
            trainer.count = (trainer.count + 1) % 3
            return trainer.trained(x)

        return step

    step = planned(turning(trainer), trainer)
    assert played(step, trainer) == played(turning(eager), eager)


@pytest.mark.parametrize("name", LOOKING)
def test_a_step_that_looks_at_what_it_counts_is_as_in_eager_mode(name: str) -> None:
    """Whether it asks if that is a number, catches the refusal, or keeps it elsewhere."""
    eager, trainer = Trainer(), Trainer()
    step = planned(LOOKING[name](trainer), trainer)
    assert played(step, trainer) == played(LOOKING[name](eager), eager)


def test_a_count_that_is_kept_elsewhere_is_there_as_in_eager_mode() -> None:
    """What was there before does not go on, by however much the count went on."""
    eager, trainer = Trainer(), Trainer()
    eager.count = trainer.count = 5
    step = planned(trainer.keeping, trainer)
    assert played(step, trainer) == played(eager.keeping, eager)
    assert trainer.seen == trainer.count


class Noting:
    """A callable object that counts, and reads again what it has noted in its model."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.calls = nn.Linear(4, 4), 0
        self.model.noted = {}  # type: ignore[assignment]

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        noted: Any = self.model.noted
        noted["loss"] = self.model(x).square().mean()
        return {**noted}


@pytest.mark.parametrize("of", [lambda noting: noting, lambda noting: noting.__call__], ids=["object", "method"])
def test_a_step_that_counts_may_note_something_in_its_model(of: Callable[[Noting], Callable[..., Any]]) -> None:
    """What it notes does not make the next step another one, nor does the number."""
    eager, noting = Noting(), Noting()
    step = outgrow.compile(of(noting), model=noting.model, memory_budget="10TiB")
    for _ in range(3):
        assert torch.equal(step(torch.ones(2, 4))["loss"], eager(torch.ones(2, 4))["loss"])
    assert noting.calls == eager.calls


def test_what_one_way_of_a_step_counts_is_no_part_of_another() -> None:
    """Ways that were captured before it was known that it is counted are captured once more, and serve ever after."""
    trainer, eager = Trainer(), Trainer()
    step = planned(trainer.counting_what_it_leaves_out, trainer)
    numbers: list[int] = []
    for factor in (1.0, math.nan, *(1.0, math.nan, 1.0) * 3):
        for run in (step, eager.counting_what_it_leaves_out):
            run(torch.full((2, 4), factor))
        assert trainer.counted() == eager.counted()
        numbers.append(len(step.plans.plans))
    assert numbers == [1, 2, *[3] * 9]


def test_what_one_step_counts_another_may_look_at() -> None:
    """The layer looks at it for batches of another shape alone."""
    losses: list[list[float]] = []
    for is_planned in (False, True):
        trainer = Trainer()
        trainer.model.looks = True
        step = planned(trainer.trained, trainer) if is_planned else trainer.trained
        losses.append([float(step(torch.ones(rows, 4))) for rows in (2, 3, 2, 2, 3, 2, 3)])
    assert losses[0] == losses[1]


def test_counting_goes_on_from_where_somebody_else_has_put_it() -> None:
    """From another number in the same step; what is no number fails as in eager mode."""
    trainer = Trainer()
    step, x = planned(trainer.by_attributes, trainer), torch.ones(2, 4)
    step(x)
    trainer.count = 100
    step(x)
    assert (trainer.count, len(step.plans.plans)) == (101, 1)
    trainer.count = None
    with pytest.raises(TypeError):
        step(x)


LEAVING: dict[str, Callable[[Trainer, Tensor, list[Any]], Any]] = {
    "a table in a list": lambda trainer, loss, log: log.append({"step": trainer.count, "loss": loss.item()}),
    "what it was": lambda trainer, loss, log: log.append((trainer.count - 1, loss)),
    "a part of it": lambda trainer, loss, log: log.append([trainer.count, trainer.count / 2, 7, loss.item()]),
    "a table": lambda trainer, loss, _: trainer.table.update(loss=loss.item(), step=trainer.count),
    "returned": lambda trainer, loss, _: {"step": trainer.count, "loss": loss},
}


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
def test_a_count_may_be_left_beside_results(leave: Callable[[Trainer, Tensor, list[Any]], Any]) -> None:
    """Once that is plain, it makes no other step, and is that of the call."""
    found: list[tuple[Any, ...]] = []
    for is_planned in (False, True):
        trainer, log = Trainer(), list[Any]()

        def step(x: Tensor, trainer: Trainer = trainer, log: list[Any] = log) -> Any:
            trainer.count += 1
            return leave(trainer, trainer.trained(x), log)

        called: Any = step
        if is_planned:
            called = outgrow.compile(step, model=trainer.model, optimizer=trainer.optimizer, memory_budget="8GiB")
        returned = [called(torch.full((2, 4), 0.5 + at)) for at in range(5)]
        kinds = [[type(item) for item in pytree.tree_leaves(entry)] for entry in (*log, *returned)]
        found.append((str(returned), str(log), str(trainer.table), trainer.count, kinds))
        if isinstance(called, outgrow.Step):
            assert len(called.plans.plans) <= 2
            called.close()
    assert found[0] == found[1]
