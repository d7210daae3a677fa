"""Random numbers that are not torch's are refused: they would be the same ever after."""

import random
from collections.abc import Callable
from functools import partial, wraps
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture

OWN = random.Random(1)
DRAWS: dict[str, Callable[[], object]] = {
    "Python's random module": random.random,
    "NumPy's random numbers": np.random.rand,
    "a random.Random": random.Random(3).random,
    "a Generator of NumPy": np.random.default_rng(3).random,
    "a RandomState of NumPy": np.random.RandomState(3).rand,
}


class Dropping(nn.Module):
    """Scales by a number that it draws by a function of its own."""

    def __init__(self, draw: Callable[[], object]) -> None:
        super().__init__()
        self.draws = [draw]

    def forward(self, x: Tensor) -> Tensor:
        return x * float(str(self.draws[0]()))


def state_of(draw: Callable[[], object]) -> str:
    owner = getattr(draw, "__self__", None)
    states = (random.getstate(), np.random.get_state(), OWN.getstate())  # noqa: NPY002
    match owner:
        case random.Random():
            return repr((states, owner.getstate()))
        case np.random.Generator():
            return repr((states, owner.bit_generator.state))
        case _:
            return repr(states)


@pytest.mark.parametrize(("name", "draw"), DRAWS.items(), ids=DRAWS.keys())
def test_other_random_numbers_are_refused(name: str, draw: Callable[[], object]) -> None:
    """Those of modules, and those that a model holds; the generator is as it was."""
    model, before = Dropping(draw), state_of(draw)
    with pytest.raises(Uncapturable, match=f"draws from {name}"):
        capture(model, [model], [], (torch.ones(2),))
    assert state_of(draw) == before


def test_a_generator_that_the_step_closes_over_is_refused() -> None:
    """A global name, or one of a function around it."""
    own = random.Random(2)

    def by_global_name(x: Tensor) -> Tensor:
        return x * OWN.random()

    def by_closure(x: Tensor) -> Tensor:
        return x * own.random()

    before = state_of(own.random)
    for step in (by_global_name, by_closure):
        with pytest.raises(Uncapturable, match=r"draws from a random\.Random"):
            capture(step, [], [], (torch.ones(2),))
    assert state_of(own.random) == before


class Trainer:
    """A step that is bound to what holds a generator."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def step(self, x: Tensor) -> Tensor:
        return x * self.generator.random()


def test_a_generator_of_the_object_that_a_step_is_bound_to_is_refused() -> None:
    """Of a method, of a partial function of it, and of a function that calls it."""
    trainer = Trainer()
    for step in (trainer.step, partial(trainer.step), lambda x: trainer.step(x) + 1):
        with pytest.raises(Uncapturable, match="draws from a Generator of NumPy"):
            capture(step, [], [], (torch.ones(2),))


def test_a_generator_of_what_wraps_a_step_is_refused() -> None:
    """The wrapper runs, too."""
    own = random.Random(2)

    def step(x: Tensor) -> Tensor:
        return x + 1

    @wraps(step)
    def wrapper(x: Tensor) -> Tensor:
        return step(x) * own.random()

    with pytest.raises(Uncapturable, match=r"draws from a random\.Random"):
        capture(wrapper, [], [], (torch.ones(2),))


def test_a_generator_of_what_a_step_calls_is_refused() -> None:
    """Wherever that is: in a function that the step calls, or two attributes deep; it is put back."""
    own, trainer = np.random.default_rng(2), Trainer()
    outer = SimpleNamespace(trainer=trainer)

    def noise() -> float:
        return own.random()

    before = repr((own.bit_generator.state, trainer.generator.bit_generator.state))
    for step in (lambda x: x * noise(), lambda x: outer.trainer.step(x) + 1):
        with pytest.raises(Uncapturable, match="draws from a Generator of NumPy"):
            capture(step, [], [], (torch.ones(2),))
    assert repr((own.bit_generator.state, trainer.generator.bit_generator.state)) == before


UNSEEDED: dict[str, Callable[[], object]] = {
    "Random": lambda: random.Random().random(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "default_rng": lambda: np.random.default_rng().random(),
    "PCG64": lambda: np.random.Generator(np.random.PCG64()).random(),
    "RandomState": lambda: np.random.RandomState().rand(),
}


@pytest.mark.parametrize("draw", UNSEEDED.values(), ids=UNSEEDED.keys())
def test_a_step_makes_no_generator_without_a_seed(draw: Callable[[], object]) -> None:
    """Its seed would be the same ever after. The refusal is final, even if the step catches it."""

    def catching(x: Tensor) -> Tensor:
        try:
            return x * float(str(draw()))
        except Uncapturable:
            return x * 2

    for step in (lambda x: x * float(str(draw())), catching):
        with pytest.raises(Uncapturable, match="without a seed"):
            capture(step, [], [], (torch.ones(2),))
    assert draw() != draw()


def test_a_step_may_make_generators_with_seeds() -> None:
    """They give the same numbers in every call; a module that it imports may make others."""
    source = "import random; import numpy as np; found = random.Random(); other = np.random.default_rng()"

    def step(x: Tensor) -> Tensor:
        exec(compile(source, "<imported>", "exec"), {})
        return x * random.Random(1).random() * np.random.default_rng(1).random()

    assert len(capture(step, [], [], (torch.ones(2),)).graph.ops) == 2


def test_what_a_step_closes_over_may_have_no_value() -> None:
    """Since the step does not come there."""
    if OWN.random() < 0:
        average = nn.Identity()

    def step(x: Tensor) -> Tensor:
        return average(x) if len(x) > 2 else x * 2

    graph = capture(step, [], [], (torch.ones(2),)).graph
    assert [op.operator for op in graph.ops] == ["aten.mul.Tensor"]


def test_a_generator_that_is_left_alone_is_no_matter() -> None:
    """A model may hold one."""
    model = Dropping(partial(float, 2))
    model.draws.append(random.Random(5).random)
    assert len(capture(model, [model], [], (torch.ones(2),)).graph.ops) == 1
