"""What is found out once of a program on a heap holds in every run of it."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outgrow.analysis.cost import Cost
from outgrow.errors import ReplayMismatch
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.tracing.capture import capture
from outgrow.runtime import arena
from outgrow.runtime.execute import Run
from outgrow.runtime.foreknown import course_of
from outgrow.runtime.heap import Heap
from outgrow.runtime.program import Call, Program
from outgrow.runtime.repeated import again, execute
from outgrow.runtime.rerun import Rerun

LARGE = arena.LEAST_BYTES // 4
"""Elements of the smallest tensor that is large."""


def of(function: Callable[[Tensor], object], x: Tensor) -> Program:
    """The program of a function of a batch."""
    return lower(capture(function, [], [], (x,)).graph)


def run_of(program: Program, x: Tensor, memory: Heap, capacity: int = 1 << 24) -> Rerun:
    """The run by numbers of a program."""
    storages = {"batch.0": x.untyped_storage()}
    run = again(Run(program, None, storages, {}, capacity, memory=memory), None, [])
    assert isinstance(run, Rerun)
    return run


def chain(x: Tensor) -> Tensor:
    """Small results before large ones, and after them."""
    small = x[:8].exp() * 2 + 1
    large = (x.exp() + small.sum()).sin()
    rows = large.view(4, -1).t()[:5].contiguous()
    return rows.sum() + torch.stack([*large[:4].split(1), small[:1]]).sum()


def beside_something_freed(x: Tensor) -> Tensor:
    """Many small results after a large one that has been freed."""
    scale = x.exp().sum()
    small = [torch.ones(LARGE - 64) * scale for _ in range(60)]
    return torch.stack([item.sum() for item in small]).sum()


def beside_workspace(x: Tensor) -> Tensor:
    """Many small results after an op that has taken large workspace."""
    scale = torch.logsumexp(x, 0)
    small = [torch.ones(LARGE - 64) * scale for _ in range(60)]
    return torch.stack([item.sum() for item in small]).sum()


@pytest.mark.parametrize("function", [chain, beside_something_freed, beside_workspace])
def test_what_is_held_and_what_rests_keeps_the_capacity(function: Callable[[Tensor], Tensor]) -> None:
    """After each instruction, with no more than what the largest of them needs and 1 MiB."""
    arena.install()
    x = torch.ones(4 << 20)
    workspace = x.nbytes if function is beside_workspace else 0
    costs = {"logsumexp": Cost(1.0, workspace, workspace)}
    program = replace(of(function, x), costs=costs)
    course = course_of(program)
    capacity = x.nbytes + course.foreknown.peak_bytes + (1 << 20)
    arena.keep_at_most(0)
    run = run_of(program, x, Heap(), capacity)
    run.start()
    for at, held in enumerate([*course.begun_bytes[1:], course.risen_bytes[-1]]):
        run.advance(at + 1)
        assert x.nbytes + held + arena.resting_bytes() <= capacity, at
    recording = run.finish().recording
    assert recording.peak_bytes == x.nbytes + course.foreknown.peak_bytes == recording.trace.peak_bytes


def test_what_somebody_else_gives_is_room_and_a_reader() -> None:
    """The call that is skipped makes room for it, and looks at values as if it ran."""
    arena.install()

    def function(x: Tensor) -> Tensor:
        y = x.exp().view(2048, -1).t()
        return (y.sin() * y.cos()).sum()

    x = torch.randn(4 << 20)
    program = of(function, x)
    (at,) = (at for at, item in enumerate(program.instructions) if isinstance(item, Call) and item.name == "sin")
    capacity = x.nbytes * 4 + (1 << 20)
    arena.keep_at_most(0)
    run = run_of(program, x, Heap(), capacity)
    run.start()
    run.advance(at)
    given = [x.exp().view(2048, -1).t().sin()]
    run.receive(given)
    assert x.nbytes * 3 + arena.resting_bytes() <= capacity
    run.advance(len(program.instructions))
    assert torch.equal(torch.as_tensor(run.finish().results[0]), function(x))


def test_arguments_in_lists_and_views_are_found() -> None:
    """The result is that of the function, in every run, and nothing is left but that and the batch."""
    x = torch.randn(LARGE)
    program = of(chain, x)
    assert any(item.slots for item in program.instructions if isinstance(item, Call))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(LARGE)
        run = run_of(program, x, Heap())
        (found,) = execute(run).results
        assert isinstance(found, Tensor)
        assert torch.equal(found, chain(x))
        kept = {item.untyped_storage().data_ptr() for item in run._table if isinstance(item, Tensor)}
        assert kept == {item.untyped_storage().data_ptr() for item in (x, found)}


def test_arguments_by_keyword_are_found() -> None:
    """Such as a number that the run itself has made."""

    def function(x: Tensor) -> Tensor:
        return torch.add(x, torch.stack(x.split(1)).view(-1), alpha=x.sum().item()).sin()

    x = torch.randn(8)
    program = of(function, x)
    assert any(item.keyword_slots for item in program.instructions if isinstance(item, Call))
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(8)
        (found,) = execute(run_of(program, x, Heap())).results
        assert isinstance(found, Tensor)
        assert torch.equal(found, function(x))


def test_a_result_that_lies_otherwise_is_refused() -> None:
    """As in any run: views of it would be wrong."""
    x = torch.ones(8)
    program = of(lambda x: x.exp().view(2, 4).t().sin(), x)
    (exp, *others) = program.instructions
    assert isinstance(exp, Call)
    wrong = Program(**{**vars(program), "instructions": (_returning(exp, torch.ones(16)[::2]), *others)})
    run = run_of(wrong, x, Heap())
    with pytest.raises(ReplayMismatch, match=re.escape(exp.name)):
        execute(run)
    run.abandon()
    assert not run._table
    assert not run.storages


def _returning(call: Call, item: Tensor) -> Call:
    given = {name: getattr(call, name) for name in call.__slots__}
    return Call(**{**given, "function": lambda *_: item})
