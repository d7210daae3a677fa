"""What may give other bits of the same operands runs once, and what cannot may be repeated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from outgrow.frontends.tracing.capture import capture
from outgrow.ir.graph import Role
from outgrow.operators.effects import is_repeatable

PLACES = torch.tensor([0, 2, 2])
MASK = torch.tensor([True, False, True])

Step = Callable[[Tensor, Tensor], Tensor]
CASES: dict[str, tuple[Step, bool]] = {
    "added": (lambda x, y: x.exp().index_put((PLACES,), y, accumulate=True).sin().sum(), False),
    "written in place": (lambda x, y: x.exp().index_put_((PLACES,), y).sin().sum(), False),
    "written by a mask": (lambda x, _: x.exp().index_put_((MASK,), torch.zeros(())).sin().sum(), True),
    "copied": (lambda x, y: x.exp().index_copy(0, PLACES, y).sin().sum(), False),
    "by one thread": (lambda x, y: x.exp().scatter_add(0, PLACES, y).sin().sum(), True),
}


@contextmanager
def deterministic(*, warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(mode=True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


def are_repeatable(step: Step) -> bool:
    """Whether all calls of a captured step may be repeated."""
    graph = capture(step, [], [], (torch.ones(3), torch.ones(3))).graph
    assert all(graph.storages[name].size_bytes == 0 for name in graph.storages if name.endswith(".once"))
    return all(is_repeatable(graph, op) for op in graph.ops)


@pytest.mark.usefixtures("several_threads")
@pytest.mark.parametrize("case", CASES)
def test_what_may_have_other_bits_is_not_repeated(case: str) -> None:
    """Unless each place is written once, or by one thread."""
    step, repeatable = CASES[case]
    assert are_repeatable(step) is repeatable


@pytest.mark.usefixtures("several_threads")
def test_calls_that_are_not_repeated_do_not_wait_for_each_other() -> None:
    """Each has a turn of its own."""
    step, _ = CASES["added"]
    graph = capture(lambda x, y: step(x, y) + step(y, x), [], [], (torch.ones(3), torch.ones(3))).graph
    turns = [name for op in graph.ops for name in op.writes if graph.storages[name].role is Role.TURN]
    assert len(turns) == len(set(turns)) == 2


@pytest.mark.usefixtures("several_threads")
def test_with_deterministic_algorithms_all_may_be_repeated() -> None:
    """Unless torch is only to warn of those that it has none for."""
    step, _ = CASES["added"]
    with deterministic(warn_only=False):
        assert are_repeatable(step)
    with deterministic(warn_only=True):
        assert not are_repeatable(step)


@pytest.mark.usefixtures("one_thread")
def test_one_thread_has_one_order() -> None:
    """So all that runs on the CPU may be repeated there."""
    assert all(are_repeatable(step) for step, _ in CASES.values())
