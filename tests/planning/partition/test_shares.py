"""Do the parts of workers, cut level by level, give what the operator gives? Run one by one, without a wire."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from outgrow.frontends.workers.exchange import TOGETHER
from outgrow.frontends.workers.slicing import part, run
from outgrow.operators.regions import Region, volume
from outgrow.operators.strategies import pieces, strategies
from outgrow.operators.tdl import Operand, OperatorCall, Reducer
from outgrow.planning.partition.lacking import WHOLE
from outgrow.planning.partition.partition import factors
from outgrow.planning.partition.room import ADDENDS
from outgrow.planning.partition.shares import Spread, Task, held, moves, tasks, with_addends
from tests.frontends.cases import Case, cases

TOLERANCE = 1e-12
CASES = tuple(cases())


def cuts(call: OperatorCall, levels: int) -> Iterator[tuple[str | None, ...]]:
    """Yield all variables that a call can be cut along, in two at each level, the first worker leading; or none."""
    if levels == 0:
        yield ()
        return
    yield from ((None, *others) for others in cuts(call, levels - 1))
    for strategy in strategies(call, 2):
        inner = pieces(call, strategy, 2)[0].call
        yield from ((strategy.cut, *others) for others in cuts(inner, levels - 1))


def given(task: Task, operands: tuple[Tensor, ...]) -> list[Tensor | None]:
    """What a worker gives, from whole operands."""
    parts = [part(x, task.needed[at], task.fill) if at in task.needed else x for at, x in enumerate(operands)]
    found = run(task.call, [torch.zeros_like(x) if at in task.zeros else x for at, x in enumerate(parts)])
    return found if task.divisor == 1 else [None if item is None else item / task.divisor for item in found]


def whole(spread: Spread, parts: list[Tensor], shape: tuple[int, ...], worker: int) -> Tensor:
    """A tensor put together by one worker from what all have."""
    workers = len(parts)
    box = tuple((0, size) for size in shape)
    reducers = [kind for kind in spread.kinds[worker] if isinstance(kind, Reducer)]
    found = torch.full(shape, torch.nan, dtype=torch.float64)
    for item in moves(spread, (box,) * workers, workers)[worker]:
        place = tuple(slice(begin, end) for begin, end in item.box)
        piece = parts[item.worker][within(item.box, spread.boxes[item.worker])].double()
        found[place] = piece if item.turn == 0 else TOGETHER[reducers[0]](found[place], piece)
    return found


def within(box: Region, outer: Region) -> tuple[slice, ...]:
    """Where a box lies in another."""
    return tuple(slice(begin - low, end - low) for (begin, end), (low, _) in zip(box, outer, strict=True))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_parts_of_parts_give_the_whole(case: Case) -> None:
    """For four workers, that is two levels, along every pair of variables; any worker can put all of it together."""
    expected = run(case.call, case.operands)
    for chosen in cuts(case.call, 2):
        found = tasks(case.call, chosen, 4)
        parts = [given(task, case.operands) for task in found]
        results: list[Tensor | None] = []
        for number, result in enumerate(expected):
            if result is None:
                results.append(None)
                continue
            boxes = [task.made[number] for task in found]
            spread = Spread(tuple(box for box in boxes if box is not None), tuple(t.kinds[number] for t in found))
            own = [item[number] for item in parts]
            results.append(whole(spread, [item for item in own if item is not None], tuple(result.shape), 3))
        quotient = found[0].quotient
        if quotient is not None:
            upper, lower = (results[at] for at in quotient)
            assert upper is not None
            assert lower is not None
            results[quotient[0]] = upper / lower
        for one, other in zip(results, expected, strict=True):
            if one is not None and other is not None and other.numel():
                scale = float(other.abs().max().clamp(min=1.0))
                assert float((one - other).abs().max()) / scale <= TOLERANCE, chosen


@pytest.mark.parametrize("workers", [4, 8])
@pytest.mark.parametrize("rows", [3, 5, 9])
def test_addends_add_up_to_the_whole(rows: int, workers: int) -> None:
    """Also where some groups have too little to cut, so that all of their workers do the same."""
    x, y = torch.randn(4, rows, dtype=torch.float64), torch.randn(rows, 6, dtype=torch.float64)
    call = OperatorCall("aten.mm.default", (Operand(0, (4, rows)), Operand(1, (rows, 6))), ((4, 6),))
    levels = len(factors(workers))
    for count in range(1, levels + 1):
        chosen = ("k",) * count + ("i",) * (levels - count)
        found = tasks(call, chosen, workers)
        made = [given(task, (x, y))[0] for task in found]
        spread = Spread(tuple(task.made[0] or () for task in found), tuple(task.kinds[0] for task in found))
        stay = tuple(cut == "k" for cut in chosen)
        states = tuple(ADDENDS if cut == "k" else 0 for cut in chosen)
        own = held((4, 6), states, workers)
        addends: list[Tensor] = []
        for worker, parts in enumerate(moves(with_addends(spread, stay, workers), own.boxes, workers)):
            box = own.boxes[worker]
            addend = torch.zeros([end - begin for begin, end in box], dtype=torch.float64)
            for item in parts:
                piece = made[item.worker]
                assert piece is not None
                addend[within(item.box, box)] += piece[within(item.box, spread.boxes[item.worker])]
            addends.append(addend)
        for worker in range(workers):
            error = (whole(own, addends, (4, 6), worker) - x @ y).abs().max()
            assert float(error) <= TOLERANCE, chosen


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("shape", [(7,), (5, 9), (3, 4, 2)])
def test_what_is_held_covers_a_tensor_once(shape: tuple[int, ...], workers: int) -> None:
    """Each worker can have any box from the others, each element from one of them, and its own from itself."""
    levels = len(factors(workers))
    for states in product((WHOLE, *range(len(shape))), repeat=levels):
        spread = held(shape, states, workers)
        box = tuple((0, size) for size in shape)
        for worker, parts in enumerate(moves(spread, (box,) * workers, workers)):
            assert sum(volume(item.box) for item in parts) == volume(box)
            assert all(item.turn == 0 for item in parts)
            own = [item.box for item in parts if item.worker == worker]
            assert own == ([spread.boxes[worker]] if volume(spread.boxes[worker]) else [])
