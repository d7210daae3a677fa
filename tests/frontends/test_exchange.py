"""Do boxes that travel keep their elements and their order?"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outgrow.frontends import exchange
from outgrow.planning.shares import Part

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


@given(st.lists(st.sampled_from(sorted(PIECES)), max_size=4))
def test_pieces_are_packed_one_after_the_other(names: list[str]) -> None:
    """Whatever their strides: what is sent is contiguous, and can be taken as bytes."""
    pieces = [PIECES[name] for name in names]
    packed = exchange._packed(pieces, TABLE)
    expected: list[Tensor] = [piece.reshape(-1) for piece in pieces]
    assert torch.equal(packed, torch.cat(expected) if expected else TABLE.new_empty(0))
    assert packed.view(torch.uint8).numel() == 4 * packed.numel()


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
