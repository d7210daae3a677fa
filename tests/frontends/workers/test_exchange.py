"""Do boxes that travel keep their elements and their order?"""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outgrow.frontends.workers import exchange
from outgrow.operators.tdl import Reducer
from outgrow.planning.partition.shares import Part

TABLE = torch.arange(60.0).view(5, 12)
PIECES = {
    "all": TABLE,
    "rows": TABLE[1:3],
    "a column": TABLE[:, 7:8],
    "columns": TABLE[:, 2:6],
    "transposed": TABLE.t(),
    "one": TABLE[2, 3],
    "none": TABLE[:0],
}


@given(st.lists(st.lists(st.sampled_from(sorted(PIECES)), max_size=4), min_size=1, max_size=4))
def test_pieces_for_each_worker_lie_one_after_the_other(names: list[list[str]]) -> None:
    """Whatever their strides: what is sent is contiguous, and can be taken as bytes; what several get is there once."""
    sent = [[PIECES[name] for name in of_one] for of_one in names]
    packed, begins = exchange._packed(TABLE, sent)
    for begin, pieces in zip(begins, sent, strict=True):
        expected = torch.cat([piece.reshape(-1) for piece in pieces]) if pieces else TABLE.new_empty(0)
        assert torch.equal(packed[begin : begin + len(expected)], expected)
    assert packed.view(torch.uint8).numel() == 4 * packed.numel()
    is_itself = packed.data_ptr() == TABLE.data_ptr()
    alone = {tuple(of_one): sum(piece.numel() for piece in pieces) for of_one, pieces in zip(names, sent, strict=True)}
    assert is_itself or packed.numel() <= sum(alone.values())


@pytest.mark.parametrize(
    ("rows", "workers", "are_stacked"),
    [
        (((0, 2), (2, 5)), (0, 1), True),
        (((0, 2), (2, 5)), (1, 0), False),
        (((0, 2), (3, 5)), (0, 1), False),
        (((0, 2), (2, 4)), (0, 1), False),
        (((1, 2), (2, 5)), (0, 1), False),
    ],
)
def test_parts_are_stacked_if_they_follow_each_other(
    rows: tuple[tuple[int, int], ...], workers: tuple[int, ...], are_stacked: bool
) -> None:
    """In the order in which they arrive, without holes, and with all of every other dimension."""
    wanted = ((0, 5), (3, 7))
    parts = [Part(worker, (row, wanted[1]), 0) for worker, row in zip(workers, rows, strict=True)]
    assert exchange._are_stacked(parts, wanted) == are_stacked
    narrow = [Part(part.worker, (part.box[0], (3, 6)), 0) for part in parts]
    assert not exchange._are_stacked(narrow, wanted)


@pytest.mark.parametrize(
    ("rows", "is_row"), [(((0, 2), (2, 5)), True), (((0, 2), (3, 5)), False), (((2, 5), (0, 2)), False)]
)
def test_what_lies_one_after_the_other_is_sent_as_it_is(rows: tuple[tuple[int, int], ...], *, is_row: bool) -> None:
    """Without a copy, if the order is that of the memory and nothing lies between: to one, to several, or to none."""
    pieces = [TABLE[begin:end] for begin, end in rows]
    packed, begins = exchange._packed(TABLE, [pieces, [], pieces, pieces[1:]])
    assert (packed.data_ptr() == TABLE.data_ptr()) == is_row
    expected = torch.cat([piece.reshape(-1) for piece in pieces])
    assert torch.equal(packed[begins[2] : begins[2] + len(expected)], expected)


def test_where_nothing_is_sent_nothing_is_lent() -> None:
    """A tensor that others do not want is free at once."""
    packed, begins = exchange._packed(TABLE, [[], []])
    assert packed.numel() == 0
    assert begins == [0, 0]


@pytest.mark.parametrize("later", [((0, 2), (2, 5)), ((0, 1), (1, 5))], ids=["as cut", "cut otherwise"])
def test_parts_of_later_turns_are_added(later: tuple[tuple[int, int], ...]) -> None:
    """Also where they are cut otherwise; what no part covers stays as it was."""
    cuts = [((0, 2), 0), ((2, 4), 0), *((cut, turn) for turn in (1, 2) for cut in later)]
    boxes = [((begin, min(end, 4)), (0, 3)) for (begin, end), _ in cuts]
    pieces = [torch.full((box[0][1] - box[0][0], 3), 10.0**turn) for box, (_, turn) in zip(boxes, cuts, strict=True)]
    found = torch.full((5, 3), 7.0)
    parts = [Part(0, box, turn) for box, (_, turn) in zip(boxes, cuts, strict=True)]
    exchange._put_together(found, ((0, 5), (0, 3)), parts, pieces, torch.add)
    assert torch.equal(found, torch.cat([torch.full((4, 3), 111.0), torch.full((1, 3), 7.0)]))


def test_so_many_exchanges_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is waited for when one more begins; where none may be, each is waited for at once."""
    waited: list[int] = []

    def arrived(found: Tensor, _packed: Tensor) -> Tensor:
        waited.append(int(found[0]))
        return found

    numbers = count()
    calls = SimpleNamespace(exchange=lambda *_: torch.full((8,), next(numbers), dtype=torch.uint8), arrived=arrived)
    monkeypatch.setattr(torch.ops, "outgrow", calls)
    box = ((0, 2),)
    moves = ((Part(0, ((0, 1),), 0), Part(1, ((1, 2),), 0)), (Part(0, ((0, 1),), 0), Part(1, ((1, 2),), 0)))
    sent = (torch.zeros(1), ((0, 1),), box, moves, Reducer.SUM, 0.0)
    wire = exchange.Wire(0, "", torch.zeros(2), 3)
    coming = [wire.carried(*sent) for _ in range(5)]
    assert waited == [0, 1]
    wire.settle()
    assert waited == [0, 1, 2, 3, 4]
    assert all(isinstance(item, exchange.Coming) for item in coming)
    assert isinstance(exchange.Wire(0, "", torch.zeros(2), 0).carried(*sent), Tensor)
    assert waited == [0, 1, 2, 3, 4, 5]
