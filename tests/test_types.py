"""A step keeps its types: what a checker must find is asserted here, for `make check`, and runs as well.

A line that has to be wrong says so to the checker, which tells if it is not.
"""

from contextlib import closing
from typing import assert_type

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow

MODEL = nn.Linear(4, 4)
OPTIMIZER = SGD(MODEL.parameters())


def learn(x: Tensor, weight: float = 1.0) -> tuple[Tensor, int]:
    loss = MODEL(x).square().mean() * weight
    loss.backward()
    OPTIMIZER.step()
    OPTIMIZER.zero_grad()
    return loss.detach(), len(x)


def test_a_step_takes_and_returns_what_the_function_does() -> None:
    """Compiled by a call, or decorated."""
    step = outgrow.compile(learn, model=MODEL, optimizer=OPTIMIZER, memory_budget="1GiB")
    decorate = outgrow.compile(model=[MODEL], optimizer=[OPTIMIZER], memory_budget=2**30)
    decorated = decorate(learn)
    with closing(step), closing(decorated):
        _, of_two = assert_type(step(torch.ones(2, 4), weight=2.0), tuple[Tensor, int])
        _, of_three = assert_type(decorated(torch.ones(3, 4)), tuple[Tensor, int])
    assert (of_two, of_three) == (2, 3)


def test_arguments_that_the_function_does_not_take_are_errors() -> None:
    """Of types, before any step has run, and of Python."""
    step = outgrow.compile(learn, model=MODEL, optimizer=OPTIMIZER, memory_budget="1GiB")
    with closing(step), pytest.raises(TypeError, match="wight"):
        step(torch.ones(2, 4), wight=2.0)  # pyright: ignore[reportCallIssue]


def test_what_is_built_has_its_type() -> None:
    """That of what the function returns."""
    made = assert_type(outgrow.build(lambda: nn.Linear(2, 2), memory_budget="1GiB"), nn.Linear)
    assert made.in_features == 2
