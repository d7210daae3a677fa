"""What is found out once of a program on a heap holds in every run of it."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outgrow.analysis.cost import Cost
from outgrow.errors import ReplayMismatch
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.tracing.capture import capture
from outgrow.runtime import arena
from outgrow.runtime.execute import Run
from outgrow.runtime.foreknown import foreknown
from outgrow.runtime.heap import Heap
from outgrow.runtime.numbered import Numbered, NumberedProgram, numbered
from outgrow.runtime.program import Call, Program
from outgrow.runtime.repeated import again
from outgrow.runtime.rerun import Rerun

LARGE = arena.LEAST_BYTES // 4
"""Elements of the smallest tensor that is large."""


def of(function: Callable[[Tensor], object], x: Tensor) -> Program:
    """The program of a function of a batch."""
    return lower(capture(function, [], [], (x,)).graph)


def run_of(program: Program, x: Tensor, memory: Heap, capacity: int = 1 << 24) -> Rerun:
    """The run by numbers of a program."""
    run = again(Run(program, {}, None, {"batch.0": x.untyped_storage()}, {}, capacity, memory=memory), None, {})
    assert isinstance(run, Rerun)
    return run


def chain(x: Tensor) -> Tensor:
    """Small results before large ones, and after them."""
    small = x[:8].exp() * 2 + 1
    large = (x.exp() + small.sum()).sin()
    rows = large.view(4, -1).t()[:5].contiguous()
    return rows.sum() + torch.stack([*large[:4].split(1), small[:1]]).sum()


def test_room_is_made_for_all_that_comes_until_it_is_made_next() -> None:
    """It is made where something large comes into being, and for the workspace of an op."""
    program = of(chain, torch.ones(LARGE))
    workspace = {"exp_1": Cost(1.0, 5000, 1000)}
    _, begun, risen = foreknown(program, workspace)
    numbers = numbered(program, workspace).numbers
    room, made = numbers.at_first, list[str]()
    for at, part in enumerate(numbers.parts):
        assert isinstance(part, Numbered)
        if part.after is not None:
            room = part.after
            made.append(part.call.name)
        assert risen[at] <= room
        assert part.before == (begun[at] + 4000 if part.call.name == "exp_1" else None)
    assert made == ["exp_1", "add_1", "sin"]


def test_arguments_in_lists_and_views_are_found() -> None:
    """The result is that of the function, in every run, and nothing is left but that and the batch."""
    x = torch.randn(LARGE)
    program = numbered(of(chain, x), {})
    assert any(part.gather is None for part in program.numbers.parts if isinstance(part, Numbered))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(LARGE)
        run = run_of(program, x, Heap())
        (found,) = run.execute().results
        assert isinstance(found, Tensor)
        assert torch.equal(found, chain(x))
        kept = {item.untyped_storage().data_ptr() for item in run._table if isinstance(item, Tensor)}
        assert kept == {item.untyped_storage().data_ptr() for item in (x, found)}


def test_a_result_that_lies_otherwise_is_refused() -> None:
    """As in any run: views of it would be wrong."""
    x = torch.ones(8)
    program = of(lambda x: x.exp().view(2, 4).t().sin(), x)
    (exp, *others) = program.instructions
    assert isinstance(exp, Call)
    wrong = Program(**{**vars(program), "instructions": (_returning(exp, torch.ones(16)[::2]), *others)})
    run = run_of(numbered(wrong, {}), x, Heap())
    with pytest.raises(ReplayMismatch, match=re.escape(exp.name)):
        run.execute()
    run.abandon()
    assert not run._table
    assert not run.storages


def _returning(call: Call, item: Tensor) -> Call:
    given = {name: getattr(call, name) for name in call.__slots__}
    return Call(**{**given, "function": lambda *_: item})


def test_the_program_is_as_before() -> None:
    """It has numbers as well, and whoever does not ask for them sees no difference."""
    program = of(chain, torch.ones(LARGE))
    other = numbered(program, {})
    assert isinstance(other, NumberedProgram)
    assert all(vars(other)[name] is item for name, item in vars(program).items())
