"""Numbers that a step finds outside are those of the call, and those that it changes are changed once a call."""

import site
import sys
import warnings
from array import array
from collections import UserList
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cached_property, partial, wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow
from outgrow.frontends import within_budget
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.left.changes import Changed
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.reach.reach import reached

PACKAGE = """
class Progress:
    def __init__(self):
        self.calls = 0

class Every:
    def __init__(self, count):
        self.count, self.progress, self.table = count, Progress(), {"calls": 0}

    def is_due(self):
        self.progress.calls += 1
        return self.progress.calls % self.count == 0

    def is_due_by_table(self):
        self.table["calls"] += 1
        return self.table["calls"] % self.count == 0
"""
"""Of a package, whose code is not looked at."""
COUNT = 0
FACTOR = 1.0
loss = 0.0


def installed(source: str) -> Any:
    """A module of this text, as if it were of an installed package."""
    module = sys.modules["every"] = ModuleType("every")
    module.__file__ = str(Path(site.getsitepackages()[0]) / "every.py")
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module


class Trainer:
    """A model in training, and what a step may find around it."""

    steps = 0

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.count, self.seen, self.config = 0, 0, SimpleNamespace(weight=1.0)
        self.table = {"count": 0, "other": 0}
        package = installed(PACKAGE)
        self.every, self.derived = package.Every(2), type("Derived", (package.Every,), {"__module__": __name__})(2)

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

    def counted_from_the_class(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.trained(self.loss(x) * self.steps)

    def counted_by_a_package(self, x: Tensor) -> Tensor:
        return self.trained(self.loss(x), updates=self.every.is_due())

    def counted_by_a_derived_class(self, x: Tensor) -> Tensor:
        return self.trained(self.loss(x), updates=self.derived.is_due())

    def counted_in_a_table_of_a_package(self, x: Tensor) -> Tensor:
        return self.trained(self.loss(x), updates=self.every.is_due_by_table())

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
    "attribute of the class": lambda trainer: trainer.counted_from_the_class,
    "entry": lambda trainer: trainer.tabled,
    "global variable": lambda trainer: trainer.counted_globally,
    "closure": closing,
    "object of a package": lambda trainer: trainer.counted_by_a_package,
    "object of a class that is derived from one": lambda trainer: trainer.counted_by_a_derived_class,
    "table of a package": lambda trainer: trainer.counted_in_a_table_of_a_package,
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
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", room)
    eager, planned = Trainer(), Trainer()
    expected = trained(STEPS[name](eager), eager)
    step = outgrow.compile(STEPS[name](planned), model=planned.model, optimizer=planned.optimizer, memory_budget="4GiB")
    assert trained(step, planned) == expected
    assert (vars(planned).get("steps"), planned.count) == (vars(eager).get("steps"), eager.count)
    assert (planned.table, COUNT in (0, 5)) == (eager.table, True)
    assert planned.every.progress.calls == eager.every.progress.calls
    assert planned.every.table == eager.every.table
    assert planned.derived.progress.calls == eager.derived.progress.calls


@pytest.mark.filterwarnings("ignore:.*captured")
def test_a_step_that_changes_a_number_is_told_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be captured in every call."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    trainer = Trainer()
    step = outgrow.compile(trainer.counted, model=trainer.model, optimizer=trainer.optimizer, memory_budget="4GiB")
    with pytest.warns(UserWarning, match=r"changes `self.count`") as told:
        trained(step, trainer)
    assert sum("self.count" in str(item.message) for item in told) == 1


def test_a_step_that_sets_the_same_number_in_every_call_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes the number in the first call alone."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    trainer = Trainer()

    def step(x: Tensor) -> Tensor:
        trainer.last = 0.5  # type: ignore[attr-defined]
        return trainer.trained(trainer.loss(x))

    compiled = outgrow.compile(step, model=trainer.model, optimizer=trainer.optimizer, memory_budget="4GiB")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            compiled(torch.ones(2, 4))
    assert len(compiled.plans.plans) == 2


def test_a_step_that_turns_a_switch_over_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes it in each call, but there are only two ways in which it may be."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    trainer = Trainer()
    trainer.config.is_even = True

    def step(x: Tensor) -> Tensor:
        trainer.config.is_even = not trainer.config.is_even
        return trainer.trained(trainer.loss(x))

    compiled = outgrow.compile(step, model=trainer.model, optimizer=trainer.optimizer, memory_budget="4GiB")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            compiled(torch.ones(2, 4))
    assert (trainer.config.is_even, len(compiled.plans.plans)) == (False, 2)


@torch.fx.wrap
def known_to_tracers(x: Tensor) -> Tensor:
    return x * 2


def test_a_wrapped_function_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was another one while the step was traced, and every call was captured for that."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    trainer = Trainer()

    def step(x: Tensor) -> Tensor:
        return trainer.trained(known_to_tracers(trainer.loss(x)))

    compiled = outgrow.compile(step, model=trainer.model, optimizer=trainer.optimizer, memory_budget="4GiB")
    trained(compiled, trainer)
    assert len(compiled.plans.plans) == 2, "the weight of the loss changes once"


def names(step: Callable[..., object]) -> set[str]:
    return {number.location.name for number in Outside.of(reached(step)).numbers}


def test_what_a_step_writes_to_arrays_is_put_back_and_left() -> None:
    """However often the step is traced: here again, since it counts and keeps something."""
    weights, marks = np.zeros(3), bytearray(2)
    model: Any = nn.Linear(3, 3)
    found: dict[str, Any] = {"calls": 0}

    def step(x: Tensor) -> Tensor:
        weights[1] += 1
        marks[0] += 1
        found["calls"] += 1
        model.last = x * 2
        return model(x).sum() * weights[1] * marks[0]

    for at in range(3):
        captured = capture(step, [model], [], (torch.ones(1, 3),))
        assert (weights[1], marks[0]) == (at, at)
        for item in (*captured.changed, *captured.counts):
            item.leave()
        assert (weights[1], marks[0]) == (at + 1, at + 1)


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


def nested(x: Tensor, depth: int, power: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Calls itself, and hands on what it was given or has chosen."""
    if power is None:
        power = cubed
    return power(x) if depth == 0 else nested(x, depth - 1, power=power)


def cubed(x: Tensor) -> Tensor:
    return x**FACTOR


def test_a_function_that_hands_on_to_itself_what_it_was_given_is_followed() -> None:
    """What it calls by that is looked at, each once."""
    assert "FACTOR" in names(lambda x: nested(x, 2))


def test_numbers_are_compared_to_the_last_bit() -> None:
    """A zero of another sign, and another type, are other numbers; what is no number is itself."""
    config = SimpleNamespace(rate=0.0)

    def step(x: Tensor) -> Tensor:
        return x * config.rate

    outside = Outside.of(reached(step))
    for value, holds in ((0.0, True), (-0.0, False), (0, False), (1.0, False), (0.0, True)):
        config.rate = value
        assert outside.still_hold() is holds
    config.rate = 3.0
    found = [item for item in outside.changed() if isinstance(item, Changed)]
    assert [(item.location.name, item.value) for item in found] == [("config.rate", 3.0)]
    outside.put_back()
    assert config.rate == 0.0
    del config.rate
    assert not outside.still_hold()


class Rate:
    """A number of a class, and of those that are made of it."""

    rate = 1.0


class Named(NamedTuple):
    """A configuration that is a tuple."""

    rate: float
    config: Rate


class Table(dict[str, float]):
    """A dictionary with an attribute."""

    rate: float


class Where:
    """A descriptor."""

    def __get__(self, owner: "Reading | None", kind: type) -> Any:
        return self if owner is None else owner.rate


class LookingConfig:
    """A configuration whose attributes are entries."""

    def __init__(self) -> None:
        self.entries = {"rate": 1.0}

    def __getattr__(self, name: str) -> float:
        return self.entries[name]


def importing(x: Tensor) -> Tensor:
    import tests.frontends.user.left.test_outside as here  # noqa: PLW0406

    return x * here.FACTOR


def importing_from(x: Tensor) -> Tensor:
    from .test_outside import FACTOR as factor  # noqa: N811

    return x * factor


def importing_the_whole(x: Tensor) -> Tensor:
    import tests.frontends.user.left.test_outside  # noqa: PLW0406

    return x * tests.frontends.user.left.test_outside.FACTOR


def scaled(x: Tensor, config: Rate, *, other: Rate) -> Tensor:
    return x * config.rate * other.rate


def doubled(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    factor = {"rate": 2.0}

    @wraps(step)
    def wrapper(x: Tensor) -> Tensor:
        return step(x) * factor["rate"]

    return wrapper


class Reading:
    """Steps that read numbers in several ways."""

    shared = 1.0

    def __init__(self) -> None:
        self.config, self.other = Rate(), Rate()
        self.rate = 1.0
        self.named, self.table = Named(1.0, self.config), Table()
        self.table.rate = 1.0

    described = Where()

    @property
    def slow(self) -> float:
        return self.rate

    @cached_property
    def kept(self) -> float:
        return self.rate

    @staticmethod
    def apart(x: Tensor, config: Rate) -> Tensor:
        return x * config.rate

    @classmethod
    def by_class(cls, x: Tensor) -> Tensor:
        return x * cls.shared

    @torch.no_grad()
    def without_gradients(self, x: Tensor) -> Tensor:
        return x * self.rate

    def inherited(self, x: Tensor) -> Tensor:
        return x * self.rate


class Derived(Reading):
    """The same, in a class below."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.shared

    def inherited(self, x: Tensor) -> Tensor:
        return super().inherited(x)


class Called(Derived):
    """Is called by what the class above has for it."""


READING = Called()
READS: dict[str, tuple[Callable[[Tensor], Tensor], set[str]]] = {
    "of the class": (lambda x: x * READING.shared, {"READING.shared"}),
    "of a class itself": (lambda x: x * Rate.rate, {"Rate.rate"}),
    "of a tuple": (
        lambda x: x * READING.named.rate * READING.named.config.rate,
        {"READING.named.rate", "READING.named.config.rate"},
    ),
    "of a dictionary": (lambda x: x * READING.table.rate, {"READING.table.__dict__.rate"}),
    "given to a function": (
        lambda x: scaled(x, READING.config, other=READING.other),
        {"READING.config.rate", "READING.other.rate"},
    ),
    "given to a static method": (lambda x: READING.apart(x, READING.config), {"READING.config.rate"}),
    "of a class method": (READING.by_class, {"self.shared"}),
    "behind a property": (lambda x: x * READING.slow, {"READING.rate"}),
    "behind a property that is kept": (lambda x: x * READING.kept, {"READING.rate"}),
    "behind a descriptor": (lambda x: x * READING.described, {"READING.rate"}),
    "among attributes": (lambda x: x * vars(READING)["rate"], {"READING.__dict__.rate"}),
    "among attributes by their name": (lambda x: x * READING.__dict__["rate"], {"READING.__dict__.rate"}),
    "of a module that is imported": (importing, {"tests.frontends.user.left.test_outside.FACTOR"}),
    "out of a module": (importing_from, {"tests.frontends.user.left.test_outside.FACTOR"}),
    "of a module in a package": (importing_the_whole, {"tests.frontends.user.left.test_outside.FACTOR"}),
    "of a wrapped method": (READING.without_gradients, {"self.rate"}),
    "of the class above": (READING.inherited, {"self.rate"}),
    "of an object that is called": (lambda x: READING(x + 1), {"READING.shared"}),
    "of a step that is an object": (READING, {"self.shared"}),
    "of what wraps a step": (doubled(lambda x: x), {"factor.rate"}),
    "of a module that is not trained": (lambda x: DROPPING(x + 1), {"DROPPING.rate"}),
}


class Dropping(nn.Module):
    """Has a number of its own, one of its class, and one in an object; reads a global one, too."""

    shared = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.reading = 1.0, Reading()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.rate


class Weighing(Dropping):
    """Reads more of it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.shared * self.reading.rate * FACTOR


DROPPING = Dropping()


@pytest.mark.parametrize(("step", "found"), READS.values(), ids=READS.keys())
def test_numbers_are_found_in_many_ways(step: Callable[[Tensor], Tensor], found: set[str]) -> None:
    """By the place where they are, whichever way the code takes to it."""
    assert names(step) == found


def test_entries_that_look_like_attributes_of_a_configuration_count() -> None:
    """What its class has for that is looked at."""
    config = LookingConfig()
    captured = capture(lambda x: x * config.rate, [], [], (torch.ones(2),))
    assert captured.outside.still_hold()
    config.entries["rate"] = 2.0
    assert not captured.outside.still_hold()


def test_a_module_that_the_step_imports_first_counts_from_the_next_call_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it was not there when the step was looked at."""
    (tmp_path / "imported_first.py").write_text("rate = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def step(x: Tensor) -> Tensor:
        import imported_first  # pyright: ignore[reportMissingImports]

        return x * imported_first.rate

    assert not capture(step, [], [], (torch.ones(2),)).outside.still_hold()
    outside = capture(step, [], [], (torch.ones(2),)).outside
    assert outside.still_hold()
    sys.modules["imported_first"].rate = 2.0  # pyright: ignore[reportAttributeAccessIssue]
    assert not outside.still_hold()
    monkeypatch.delitem(sys.modules, "imported_first")


def test_forward_passes_of_modules_in_training_are_looked_at() -> None:
    """For what signatures do not have: not for the module's own numbers."""
    model = nn.Sequential(Weighing())
    outside = capture(lambda x: model(x + 1), [model], [], (torch.ones(2),)).outside
    assert {number.location.name for number in outside.numbers} == {"model.0.shared", "model.0.reading.rate", "FACTOR"}


def test_a_forward_pass_that_was_exchanged_is_looked_at() -> None:
    """It hangs in the module itself."""
    model = nn.Linear(2, 2)
    vars(model)["forward"] = lambda x: nn.functional.linear(x, model.weight) * FACTOR
    assert {number.location.name for number in Outside.of(reached(model, [model])).numbers} == {"FACTOR"}


def test_numbers_of_an_argument_count() -> None:
    """Of one that is no container, so that a signature has it by its identity alone."""
    reading = Reading()
    captured = capture(lambda x, reading: x * reading.rate, [], [], (torch.ones(2), reading))
    assert captured.outside.still_hold()
    reading.rate = 2.0
    assert not captured.outside.still_hold()


def test_a_number_of_the_class_is_put_back_there() -> None:
    """The object has none of its own again, and what is set is its own."""
    reading = Reading()
    outside = Outside.of(reached(lambda x: x * reading.shared))
    reading.shared = 3.0
    (changed,) = outside.changed()
    outside.put_back()
    assert "shared" not in vars(reading)
    changed.leave()
    assert (reading.shared, Reading.shared) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (Decimal(1), Decimal(2)),
        (timedelta(1), timedelta(2)),
        (Path("a"), Path("b")),
        (array("f", [1.0]), array("f", [2.0])),
        (UserList([1.0]), UserList([2.0])),
    ],
)
def test_values_of_pythons_library_count_by_what_they_are(value: object, other: object) -> None:
    """A decimal, a time, a path, an array and a list of another type."""
    config = SimpleNamespace(value=value)
    outside = capture(lambda x: x * len(str(config.value)), [], [], (torch.ones(2),)).outside
    assert outside.still_hold()
    config.value = other
    assert not outside.still_hold()


def test_a_number_of_the_class_of_a_dictionary_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the dictionary has no such entry or attribute."""
    monkeypatch.setattr(Table, "rate", 1.0, raising=False)
    table = Table()
    outside = capture(lambda x: x * table.rate, [], [], (torch.ones(2),)).outside
    monkeypatch.setattr(Table, "rate", 2.0)
    assert not outside.still_hold()


def test_code_that_is_exchanged_counts() -> None:
    """As a reloader does, in a function that the step calls and in the forward pass of a model."""
    names: dict[str, Any] = {"nn": nn, "__name__": "reloaded"}
    source = """
class Model(nn.Module):
    def forward(self, x):
        return scaled(x) * {0}

def scaled(x):
    return x * {1}
"""
    exec(source.format(1, 1), names)
    model, other = names["Model"](), dict(names)
    outside = Outside.of(reached(model, [model]))
    assert outside.still_hold()
    exec(source.format(1, 2), other)
    names["scaled"].__code__, before = other["scaled"].__code__, names["scaled"].__code__
    assert outside.other() == "scaled"
    names["scaled"].__code__ = before
    assert outside.still_hold()
    names["Model"].forward.__code__ = other["Model"].forward.__code__
    assert outside.other() == "Model.forward"


def test_what_changes_beside_a_step_does_not_count() -> None:
    """A counter of the loop is no part of a step whose code only calls what has the same name."""

    class Loop:
        def __init__(self) -> None:
            self.step, self.epoch = 0, 0
            self.optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)

        def trained(self, x: Tensor) -> Tensor:
            self.optimizer.step()
            return x

    assert names(Loop().trained) == set()
