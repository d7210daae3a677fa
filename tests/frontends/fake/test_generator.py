"""Who sets torch's generator past the operators that do so is seen."""

from collections.abc import Callable
from threading import Thread

import pytest
import torch
from torch import Tensor
from torch.random import get_rng_state, set_rng_state

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture

Pair = tuple[Callable[[], Tensor], Callable[[Tensor], object]]
GENERATOR = torch.default_generator
PAIRS: dict[str, Pair] = {
    "methods": (GENERATOR.get_state, GENERATOR.set_state),
    "imported": (get_rng_state, set_rng_state),
}


@pytest.mark.parametrize(("read", "write"), PAIRS.values(), ids=PAIRS.keys())
def test_a_state_that_is_set_past_the_operators_is_refused(
    read: Callable[[], Tensor], write: Callable[[Tensor], object]
) -> None:
    """The numbers drawn since would be drawn again; the generator is as it was."""

    def step(x: Tensor) -> Tensor:
        state = read()
        first = torch.rand_like(x)
        write(state)
        return first - torch.rand_like(x)

    before = GENERATOR.get_state()
    with pytest.raises(Uncapturable, match=r"sets its state by another name than torch\.set_rng_state"):
        capture(step, [], [], (torch.ones(4),))
    assert torch.equal(GENERATOR.get_state(), before)


def test_another_thread_that_draws_is_named() -> None:
    """Nobody can tell its draws from a seed of the step's own."""

    def wait() -> None:
        thread = Thread(target=torch.rand, args=(4,))
        thread.start()
        thread.join()

    def step(x: Tensor, wait: Callable[[], object]) -> Tensor:
        wait()
        return torch.rand_like(x)

    with pytest.raises(Uncapturable, match="if another thread draws from the generator: call the step once before"):
        capture(step, [], [], (torch.ones(4), wait))


def test_draws_and_states_set_by_operators_are_captured() -> None:
    """Also in the order of each example of a batch; the generator is as it was."""

    def step(x: Tensor) -> Tensor:
        state = torch.get_rng_state()
        first = torch.vmap(torch.rand_like, randomness="different")(x)
        torch.set_rng_state(state)
        return first - torch.dropout(x, 0.5, train=True)

    before = GENERATOR.get_state()
    operators = [op.operator for op in capture(step, [], [], (torch.ones(4, 4),)).graph.ops]
    assert "outgrow.write_generator.default" in operators
    assert torch.equal(GENERATOR.get_state(), before)
