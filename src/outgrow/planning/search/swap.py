"""Which swaps and stowings does a schedule of transfers mean? From arrays back to decisions about a graph."""

from collections.abc import Sequence

import numpy as np

from outgrow.plan import Piece, Stow, Swap
from outgrow.planning.search.transfers import Gaps, Transfers


def swaps_of(
    ops: Sequence[str], storages: Sequence[str], gaps: Gaps, found: Transfers
) -> tuple[tuple[Stow, ...], tuple[Swap, ...]]:
    """Return what a schedule stows and what it swaps, given the names of ops and of the gaps' storages."""
    pieces: dict[int, list[Piece]] = {}
    parts = zip(found.piece_gap, found.piece_begin, found.piece_end, found.piece_before, strict=True)
    for gap, begin, end, before in parts:
        pieces.setdefault(int(gap), []).append(Piece(int(begin), int(end), ops[int(before)]))
    heads = {storages[gap]: gap for gap in map(int, np.flatnonzero(gaps.begin < 0))}
    stowed: list[Stow] = []
    swapped: list[Swap] = []
    for gap in [int(gap) for gap in np.flatnonzero(found.dropped >= 0)]:
        after = None if found.is_clean[gap] else ops[int(gaps.begin[gap])]
        dropped = None if found.dropped[gap] == len(ops) else ops[int(found.dropped[gap])]
        if gaps.end[gap] == len(ops):
            head = heads.get(storages[gap], -1)
            first = None if head < 0 else ops[int(gaps.end[head])]
            stowed.append(Stow(storages[gap], tuple(pieces.get(head, ())), first, after, dropped))
        else:
            assert dropped is not None, "what comes back for an op is dropped before it"
            swapped.append(Swap(storages[gap], after, dropped, tuple(pieces[gap]), ops[int(gaps.end[gap])]))
    return tuple(stowed), tuple(swapped)
