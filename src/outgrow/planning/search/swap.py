"""Which swaps and stowings does a schedule of transfers mean? From arrays back to decisions about a graph.

They stand in the order in which what moves is used again, since that is the order in which copies come back where
several begin before one op.
"""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from outgrow.plan import Piece, Stow, Swap
from outgrow.planning.search.transfers import Gaps, Transfers


def swaps_of(ops: Sequence[str], storages: Sequence[str], gaps: Gaps, found: Transfers) -> tuple[Stow | Swap, ...]:
    """Return what a schedule stows and what it swaps, given the names of ops and of the gaps' storages."""
    pieces: dict[int, list[Piece]] = {}
    parts = zip(found.piece_gap, found.piece_begin, found.piece_end, found.piece_before, strict=True)
    for gap, begin, end, before in parts:
        pieces.setdefault(int(gap), []).append(Piece(int(begin), int(end), ops[int(before)]))
    heads = {storages[gap]: gap for gap in map(int, np.flatnonzero(gaps.begin < 0))}
    decisions: list[tuple[tuple[int, int], Stow | Swap]] = []
    for gap in [int(gap) for gap in np.flatnonzero(found.dropped >= 0)]:
        after = None if found.is_clean[gap] else ops[int(gaps.begin[gap])]
        dropped = None if found.dropped[gap] == len(ops) else ops[int(found.dropped[gap])]
        if gaps.end[gap] == len(ops):
            head = heads.get(storages[gap], -1)
            first = None if head < 0 else ops[int(gaps.end[head])]
            stow = Stow(storages[gap], tuple(pieces.get(head, ())), first, after, dropped)
            decisions.append(((-1 if head < 0 else int(gaps.end[head]), -1), stow))
        else:
            assert dropped is not None, "what comes back for an op is dropped before it"
            swap = Swap(storages[gap], after, dropped, tuple(pieces[gap]), ops[int(gaps.end[gap])])
            decisions.append(((int(gaps.end[gap]), int(gaps.begin[gap])), swap))
    return tuple(decision for _, decision in sorted(decisions, key=itemgetter(0)))
