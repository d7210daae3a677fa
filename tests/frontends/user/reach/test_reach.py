"""What a step hands on counts, whether all the code that gets it is looked at or not."""

import copy
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

import outgrow
from outgrow.frontends.tracing.capture import capture

Use = Callable[[Any, Tensor], Tensor]
"""What a step does with options and with the model's result."""


class Mixed:
    """A loss that is made of options."""

    def __init__(self, options: Any) -> None:
        self.weight = options.weight

    def __call__(self, found: Tensor) -> Tensor:
        return found.sum() * self.weight


class Weighted(Mixed):
    """The same, but for what is made before."""

    def __new__(cls, options: Any) -> Self:
        made = super().__new__(cls)
        made.first = options.weight
        return made

    def __init__(self, options: Any) -> None:
        super().__init__(SimpleNamespace(weight=1.0))
        assert options is not None

    def __call__(self, found: Tensor) -> Tensor:
        return found.sum() * self.first

    first: float


class Module(nn.Module):
    """The same as a module."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.weight = options.weight

    def forward(self, found: Tensor) -> Tensor:
        return found.sum() * self.weight


@dataclass
class Keeping:
    """A loss that keeps its options."""

    options: Any

    def __call__(self, found: Tensor) -> Tensor:
        return found.sum() * self.options.weight


def starred(*given: Any) -> Tensor:
    """A loss of all that it is given."""
    return given[0].sum() * given[-1].weight


def worded(**given: Any) -> Tensor:
    """A loss of what it is given by name."""
    return given["found"].sum() * given["options"].weight


def around(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what hands on all that it is given, and does not say what it wraps."""

    def called(*given: Any) -> Tensor:
        return function(*given)

    return called


@around
def wrapped(found: Tensor, options: Any) -> Tensor:
    """A loss with something around it."""
    return found.sum() * options.weight


class Options:
    """Options of the user's own class."""

    def __init__(self) -> None:
        self.weight = 1.0


@dataclass
class Stated:
    """Options of a data class."""

    weight: float = 1.0


USES: dict[str, Use] = {
    "an object": lambda options, found: Mixed(options)(found),
    "by its name": lambda options, found: Mixed(options=options)(found),
    "an object of __new__": lambda options, found: Weighted(options)(found),
    "a module": lambda options, found: Module(options)(found),
    "others": lambda options, found: starred(found, options),
    "others by name": lambda options, found: worded(found=found, options=options),
    "wrapped": lambda options, found: wrapped(found, options),
}
USES_OF_CONFIGURATIONS: dict[str, Use] = {
    "a partial class": lambda options, found: partial(Mixed, options)()(found),
    "kept": lambda options, found: Keeping(options)(found),
    "unpacked": lambda options, found: starred(*(found,), options),
    "as a dictionary": lambda options, found: found.sum() * asdict(options)["weight"],
    "copied": lambda options, found: found.sum() * copy.copy(options).weight,
    "in a list": lambda options, found: reduce(lambda loss, item: loss * item.weight, [options], found.sum()),
    "of a table": lambda options, found: {"mixed": Mixed}["mixed"](options)(found),
}


@pytest.mark.parametrize(
    ("use", "options"),
    [
        *(pytest.param(use, make(), id=name) for name, use in USES.items() for make in (Options, Stated)),
        *(pytest.param(use, Stated(), id=name) for name, use in USES_OF_CONFIGURATIONS.items()),
    ],
)
def test_what_is_handed_on_counts(use: Use, options: Any) -> None:
    """To what makes an object, to code that has it under no name, and to code that is not looked at."""
    model = nn.Linear(2, 2)
    captured = capture(lambda x: use(options, model(x)), [model], [], (torch.ones(1, 2),))
    assert captured.outside.other() is None
    options.weight = 2.0
    assert captured.outside.other() is not None


SCALE = SimpleNamespace(now=1.0)


class Scaled:
    """A loss with a number from outside."""

    @staticmethod
    def scale() -> float:
        return SCALE.now

    @property
    def doubled(self) -> float:
        return 2 * self.scale()

    def __call__(self, found: Tensor) -> Tensor:
        return found.sum() * self.doubled


def test_what_an_object_does_that_a_step_makes_counts(no_room_is_ample: None, tmp_path: Path) -> None:  # noqa: ARG001
    """A number that only methods of its class name is that of the call."""
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)

    def step(x: Tensor) -> Tensor:
        return Scaled()(model(x))

    called = outgrow.compile(step, model=model, memory_budget="8GiB", offload_dir=tmp_path)
    for now in (1.0, 1.0, 3.0, 3.0):
        SCALE.now = now
        assert torch.equal(called(x), step(x))


@pytest.mark.parametrize("held", [lambda it: it, lambda it: {"it": it}, lambda it: [it], lambda it: (0.5, it)])
def test_attributes_of_what_is_given_count(held: Callable[[Options], Any]) -> None:
    """Also of an object in a container, which is another one in each call."""
    model, options = nn.Linear(2, 2), Options()

    def step(x: Tensor, given: Any) -> Tensor:
        found = given if isinstance(given, Options) else given["it"] if isinstance(given, dict) else given[-1]
        return model(x).sum() * found.weight

    captured = capture(step, [model], [], (torch.ones(1, 2), held(options)))
    assert captured.outside.other() is None
    options.weight = 2.0
    assert captured.outside.other() is not None


class Teacher(nn.Module):
    """A module with a number from outside."""

    def forward(self, x: Tensor) -> Tensor:
        return x * Scaled.scale()


def test_what_a_module_runs_that_is_given_counts() -> None:
    """Though it is not in training."""
    SCALE.now = 1.0
    captured = capture(lambda x, teacher: teacher(x) + 1, [], [], (torch.ones(1, 2), Teacher()))
    SCALE.now = 2.0
    assert captured.outside.other() is not None


def test_what_a_step_counts_may_be_handed_on_as_a_whole(no_room_is_ample: None, tmp_path: Path) -> None:  # noqa: ARG001
    """It makes no other step; what is set beside it does."""
    model, state = nn.Linear(2, 2), Namespace(steps=0, weight=1.0)

    def step(x: Tensor) -> Tensor:
        state.steps += 1
        return model(x).sum() * reduce(lambda weight, item: weight * item.weight, [copy.copy(state)], state.weight)

    called = outgrow.compile(step, model=model, memory_budget="8GiB", offload_dir=tmp_path)
    for _ in range(4):
        called(torch.ones(1, 2))
    assert len(called.plans.plans) == 1
    state.weight = 2.0
    called(torch.ones(1, 2))
    assert (len(called.plans.plans), state.steps) == (2, 5)
