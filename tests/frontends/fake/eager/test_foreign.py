"""An operator of others does nothing of which nobody is told: it casts nothing under autocast, and draws no numbers."""

import contextlib

import pytest
import torch
from torch import Tensor

import outgrow
from outgrow.errors import ReplayMismatch, Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.ir.graph import Graph


@torch.library.custom_op("outgrow_test::multiplied", mutates_args=())
def multiplied(x: Tensor, y: Tensor) -> Tensor:
    """A product, which autocast casts within."""
    return x @ y


@torch.library.custom_op("outgrow_test::cast", mutates_args=())
def cast(x: Tensor, y: Tensor) -> Tensor:
    """A product that says what it casts."""
    return x @ y


@torch.library.custom_op("outgrow_test::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    """Draws, and does not say so."""
    return x + torch.randn_like(x)


@torch.library.custom_op("outgrow_test::unknown", mutates_args=())
def unknown(x: Tensor) -> Tensor:
    """Does not say what it returns."""
    return x * 3


_CALLS: list[str] = []


@torch.library.custom_op("outgrow_test::negated", mutates_args=())
def negated(x: Tensor) -> Tensor:
    """Notes that it was called; its abstract form gives the same kind of tensor, with something else in it."""
    _CALLS.append("negated")
    return -x


negated.register_fake(torch.clone)
for product in (multiplied, cast):
    product.register_fake(lambda x, y: x.new_empty(len(x), y.shape[1]))
cast.register_autocast("cpu", torch.float32)
noisy.register_fake(torch.empty_like)


def test_an_operator_that_may_cast_within_is_refused_under_autocast() -> None:
    """Unless it says what it casts, or autocast is off; the refusal names the line and both ways."""

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return multiplied(x, x)

    def step_that_is_told(x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return cast(x, x)

    with pytest.raises(Uncapturable, match=r"test_foreign\.py:\d+: .*enabled=False\), or .*register_autocast"):
        capture(step, [], [], (torch.ones(2, 2),))
    for other in (multiplied, step_that_is_told):
        assert isinstance(capture(other, [], [], (torch.ones(2, 2),) * (2 if other is multiplied else 1)).graph, Graph)


@pytest.mark.usefixtures("no_room_is_ample")
def test_an_operator_that_draws_without_saying_so_is_found_out() -> None:
    """It might be repeated with other numbers."""
    step = outgrow.compile(lambda x: noisy(x).sum(), model=torch.nn.Linear(1, 1), memory_budget="10TiB")
    with pytest.raises(ReplayMismatch, match="nondeterministic_seeded"):
        step(torch.ones(3))


@pytest.mark.parametrize("of_batch", [True, False], ids=["of the batch", "of literals"])
@pytest.mark.usefixtures("no_room_is_ample")
def test_what_an_operator_of_others_gives_is_not_known_by_its_abstract_form(*, of_batch: bool) -> None:
    """So what a step decides by it is looked at in each run, and it is not called while the step is captured."""

    def step(x: Tensor) -> Tensor:
        y = negated(x if of_batch else torch.ones(3))
        return x * 2 if y.sum() > 0 else x * 3

    _CALLS.clear()
    captured = capture(step, [], [], (torch.ones(3),))
    assert len(captured.guesses) == 1
    assert not captured.questions
    assert not _CALLS
    called = outgrow.compile(step, model=torch.nn.Linear(1, 1), memory_budget="10TiB")
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(called(x), step(x))


def test_an_operator_that_is_tried_in_vain_is_refused() -> None:
    """Eager mode would have gone on with what it returns."""

    def step(x: Tensor) -> Tensor:
        with contextlib.suppress(Exception):
            return unknown(x)
        return x * 2

    def trying(x: Tensor) -> Tensor:
        try:
            return unknown(x)
        except RuntimeError:
            return x * 2

    with pytest.raises(Uncapturable, match=r"test_foreign\.py:\d+: .*register_fake"):
        capture(trying, [], [], (torch.ones(2),))
    with pytest.raises(Uncapturable, match="register_fake"):
        capture(step, [], [], (torch.ones(2),))
