"""Numbers that optimizers keep in Python go on from call to call, in one plan, wherever they stand."""

import math
from collections.abc import Callable, Iterable
from numbers import Number
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import outgrow
from outgrow.remarks import Remark

pytestmark = pytest.mark.usefixtures("no_room_is_ample")
STEPS = 6
Rule = Callable[[dict[str, Any], int], float | Tensor]


class Counting(Optimizer):
    """Counts its calls in a group and its updates in the state; a rule says how far an update goes."""

    def __init__(self, parameters: Iterable[nn.Parameter], rule: Rule) -> None:
        super().__init__(parameters, {"lr": 0.1, "calls": 0, "warm": 3})
        self.rule = rule

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            group["calls"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                assert parameter.grad is not None
                parameter.sub_(parameter.grad * (group["lr"] * self.rule(group, state["step"])))


def falling(group: dict[str, Any], step: int) -> float:
    return math.sqrt(1 - 0.9**step) / (math.pow(group["calls"], 0.7) + group["warm"])


def in_tensors(group: dict[str, Any], step: int) -> Tensor:
    return torch.tensor(1.0 / step) + torch.tensor(group["calls"], dtype=torch.float64) * 0.125


def counted_out(_group: dict[str, Any], step: int) -> float:
    return sum(0.5**at for at in range(step))


def starting_again(group: dict[str, Any], step: int) -> float:
    if group["calls"] >= group["warm"]:
        group["calls"] = 0
    return 1.0 / (1 + group["calls"] + step)


def if_a_number(group: dict[str, Any], step: int) -> float:
    return 1.0 / step if isinstance(step, int) and isinstance(group["calls"], Number) else 2.0


def of_its_type(_group: dict[str, Any], step: int) -> float:
    return 1.0 if type(step) is int else 2.0


def by_name(_group: dict[str, Any], step: int) -> float:
    return {1: 1.0, 2: 0.5}.get(step, 0.1 * float(f"{step:02d}"))


def by_parts(_group: dict[str, Any], step: int) -> float:
    return 1.0 / (1 + sum(divmod(step, 3))) + math.pow(-0.5, step)


def trained(
    rule: Rule,
    compiled: Callable[..., Any] = lambda step, **_: step,
    between: Callable[[int, Counting], None] = lambda _number, _optimizer: None,
) -> tuple[list[object], Any]:
    """What a training leaves: losses, weights and numbers; and its step."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = Counting(model.parameters(), rule)

    def plain(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step, found = compiled(plain, model=model, optimizer=optimizer), list[object]()
    for number in range(STEPS):
        found.append(step(torch.randn(16, 8)).tolist())
        between(number, optimizer)
    group = optimizer.param_groups[0]
    numbers = [(entries, type(entries["step"])) for entries in optimizer.state.values()]
    return [*found, model.weight.tolist(), numbers, group["calls"], type(group["calls"])], step


def planned(step: Callable[..., Any], **training: Any) -> Any:
    return outgrow.compile(step, memory_budget="4GiB", **training)


@pytest.mark.parametrize(("rule", "plans"), [(falling, 2), (in_tensors, 2), (if_a_number, 2), (starting_again, 3)])
def test_numbers_go_on_in_one_plan(rule: Rule, plans: int) -> None:
    """One for the first call, which makes the state, and one for all others; a branch on a number has two."""
    expected, _ = trained(rule)
    found, step = trained(rule, planned)
    assert found == expected
    assert len(step.plans.plans) == plans


def test_whoever_sets_a_number_between_calls_is_heard() -> None:
    """As load_state_dict does."""

    def between(number: int, optimizer: Counting) -> None:
        if number == 3:
            optimizer.param_groups[0]["calls"] = 40
            for entries in optimizer.state.values():
                entries["step"] += 17

    expected, _ = trained(falling, between=between)
    found, step = trained(falling, planned, between)
    assert found == expected
    assert len(step.plans.plans) == 2


def test_a_number_that_a_step_reads_alone_is_part_of_it() -> None:
    """Another one makes another step."""

    def between(number: int, optimizer: Counting) -> None:
        optimizer.param_groups[0]["warm"] = 3 if number < 2 else 5

    expected, _ = trained(falling, between=between)
    found, step = trained(falling, planned, between)
    assert found == expected
    assert len(step.plans.plans) == 3


def test_a_number_that_is_asked_for_is_named() -> None:
    """Each call is captured then, and right."""
    expected, _ = trained(counted_out)
    with pytest.warns(Remark, match=r"it looks at optimizer state 'step' of parameter 'weight'"):
        found, step = trained(counted_out, planned)
    assert found == expected
    assert len(step.plans.plans) == STEPS


@pytest.mark.parametrize("rule", [of_its_type, by_name, by_parts])
def test_what_a_symbol_answers_otherwise_than_a_number_is_asked_of_the_number(
    rule: Callable[[dict[str, Any], int], float],
) -> None:
    """Symbols are of other types, have no hash and no text, and divmod knows none."""
    expected, _ = trained(rule)
    with pytest.warns(Remark, match="it looks at"):
        found, step = trained(rule, planned)
    assert found == expected
    assert len(step.plans.plans) == STEPS


def accumulated(compiled: Callable[..., Any]) -> tuple[list[object], Any]:
    """What a training leaves that makes an update in every other call."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = Counting(model.parameters(), falling)

    def plain(x: Tensor, *, updates: bool) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        if updates:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    step = compiled(plain, model=model, optimizer=optimizer)
    found = [step(torch.randn(16, 8), updates=number % 2 == 1).tolist() for number in range(2 * STEPS)]
    return [*found, model.weight.tolist(), optimizer.state_dict()["state"]], step


def test_numbers_that_a_call_leaves_alone_are_no_part_of_it() -> None:
    """Other calls change them: there is one step that accumulates, once there is state, and one that updates."""
    expected, _ = accumulated(lambda step, **_: step)
    found, step = accumulated(planned)
    assert found == expected
    assert len(step.plans.plans) == 4


@pytest.mark.parametrize(("number", "other", "plans"), [(math.nan, math.nan, 2), (0.0, -0.0, 3)])
def test_a_number_that_stays_is_the_same_to_its_sign(number: float, other: float, plans: int) -> None:
    """One that is none is not equal to itself, and zeros of both signs are."""

    def between(at: int, optimizer: Counting) -> None:
        for entries in optimizer.state.values():
            entries["kept"] = number * 1.0 if at < 3 else other

    _, step = trained(falling, planned, between)
    assert len(step.plans.plans) == plans
