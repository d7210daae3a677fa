"""Where does every storage lie? One address for each block, in an arena as small as can be.

    variables    address(b) for every block b, a multiple of the alignment
    objective    min arena = max over b of address(b) + size(b)
    (1) apart    parts of two blocks that hold bytes at the same instruction do not share a byte    `_tightest`
    (2) bound    arena >= live peak, the most bytes held at one instruction                         `live_peak_bytes`

    fragmentation = arena / live peak - 1

This is dynamic storage allocation, NP-hard already for two sizes. Blocks are placed one by one, each into the tightest
hole that is free for as long as it lasts (best fit; the lowest such hole on a tie), else on top. What decides is the
sequence:

    1. what stays from the first instruction to the last lies at the bottom, and costs nothing
    2. the rest is placed in several sequences: largest first, longest first, most byte-instructions first, what is live
       at the peak first, and in the order of birth
    3. the best sequences are improved by walks: the block that sticks out farthest, or one that is live beside it, is
       placed earlier, or two change places; a step is kept if the arena is no larger than now, or than it was
       `_MEMORY` steps ago (late acceptance, Burke and Bykov 2017, https://doi.org/10.1016/j.ejor.2016.07.012)
    4. small blocks do not take part in the walk; they are placed last. Small is below a 200th, a 400th, a 1000th of the
       live peak, one after the other

Placing by falling size is the rule of Pisarchyk and Lee 2020, "Efficient memory management for deep neural net
inference", https://arxiv.org/abs/2001.03288; longest first is the pyramid of OLLA (Steiner et al. 2022,
https://arxiv.org/abs/2210.12924). Deterministic: a fixed seed, and no clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from outgrow.planning.addresses.blocks import Block, held_bytes, live_peak_bytes
from outgrow.planning.arrays import Integers
from outgrow.planning.compiled import compiled
from outgrow.units import round_up

_MEMORY = 30
_SMALL_SHARES = (200, 400, 1000)
_WALKS = 12
_SEED = 0


@dataclass(frozen=True)
class Placement:
    """The address of each block, the bytes of the arena that holds them, and the most bytes held at once."""

    addresses: tuple[int, ...]
    arena_bytes: int
    live_bytes: int


class _Table(NamedTuple):
    """Blocks as arrays; the parts of block b are `part_start[b]:part_start[b + 1]`."""

    size: Integers
    part_start: Integers
    low: Integers
    high: Integers
    begin: Integers
    end: Integers


@dataclass(frozen=True)
class _Shelf:
    """The blocks to place, at multiples of the alignment, from the address `bottom` up."""

    table: _Table
    alignment: int
    bottom: int


class _Arrangement(NamedTuple):
    """A sequence of blocks, the address of each block (0 where it is not in the sequence), and the arena."""

    sequence: Integers
    addresses: Integers
    arena_bytes: int


def place(blocks: Sequence[Block], *, alignment_bytes: int = 64, rounds: int = 12000, goal: float = 0.001) -> Placement:
    """Return addresses for all blocks; improvement ends after `rounds`, or once fragmentation is at most `goal`."""
    live = live_peak_bytes(blocks)
    first, last = min((block.begin for block in blocks), default=0), max((block.end for block in blocks), default=0)
    whole = [len(block.parts) == 1 and (block.begin, block.end) == (first, last) for block in blocks]
    staying = [number for number, stays in enumerate(whole) if stays]
    moving = [number for number, stays in enumerate(whole) if not stays]
    addresses = [0] * len(blocks)
    bottom = arena = 0
    for number in staying:
        addresses[number], arena = bottom, bottom + blocks[number].size_bytes
        bottom = round_up(arena, alignment_bytes)
    if moving:
        others = [blocks[number] for number in moving]
        shelf = _Shelf(_table(others), alignment_bytes, bottom)
        best = _best(shelf, others, live, rounds, int(live * (1 + goal)))
        arena = max(arena, best.arena_bytes)
        for number, address in zip(moving, best.addresses, strict=True):
            addresses[number] = int(address)
    return Placement(tuple(addresses), arena, live)


def _best(shelf: _Shelf, blocks: Sequence[Block], live: int, rounds: int, target: int) -> _Arrangement:
    """Return the best result of the sequences and, if that is above the target, of the walks; steps 2 to 4."""
    sequences = _sequences(blocks)
    best = min((_placed(shelf, sequence) for sequence in sequences), key=lambda result: result.arena_bytes)
    for share in _SMALL_SHARES:
        if best.arena_bytes <= target:
            break
        large = np.array([block.size_bytes * share >= live for block in blocks], dtype=np.bool_)
        starts = [_placed(shelf, sequence[large[sequence]]) for sequence in sequences]
        walked = _best_walk(shelf, starts, rounds // len(_SMALL_SHARES), target)
        whole = _placed(shelf, np.append(walked.sequence, sequences[0][~large[sequences[0]]]))
        best = min(best, whole, key=lambda result: result.arena_bytes)
    return best


def _table(blocks: Sequence[Block]) -> _Table:
    parts = [part for block in blocks for part in block.parts]
    return _Table(
        np.array([block.size_bytes for block in blocks], dtype=np.int64),
        np.cumsum([0, *[len(block.parts) for block in blocks]], dtype=np.int64),
        np.array([part.low for part in parts], dtype=np.int64),
        np.array([part.high for part in parts], dtype=np.int64),
        np.array([part.begin for part in parts], dtype=np.int64),
        np.array([part.end for part in parts], dtype=np.int64),
    )


def _sequences(blocks: Sequence[Block]) -> list[Integers]:
    """Return the sequences of step 2."""
    peak = max(held_bytes(blocks), key=lambda change: change[1], default=(0, 0))[0]

    def is_at_peak(block: Block) -> bool:
        return block.begin <= peak < block.end

    keys: tuple[Callable[[Block], tuple[float, ...]], ...] = (
        lambda block: (-block.size_bytes, block.begin - block.end),
        lambda block: (block.begin - block.end, -block.size_bytes),
        lambda block: (-block.size_bytes * (block.end - block.begin), block.begin),
        lambda block: (not is_at_peak(block), block.begin - block.end, -block.size_bytes),
        lambda block: (not is_at_peak(block), -block.size_bytes, block.begin - block.end),
        lambda block: (block.begin, -block.end),
    )
    numbers = range(len(blocks))
    return [np.array(sorted(numbers, key=lambda at: (*key(blocks[at]), at)), dtype=np.int64) for key in keys]


def _best_walk(shelf: _Shelf, starts: Sequence[_Arrangement], rounds: int, target: int) -> _Arrangement:
    """Return the best result of `_WALKS` walks, each from another of the best starts; step 3."""
    ranked = sorted(starts, key=lambda result: result.arena_bytes)
    best = ranked[0]
    for number in range(_WALKS):
        if best.arena_bytes <= target:
            break
        random = np.random.default_rng((_SEED, number))
        walked = _walked(shelf, ranked[number % len(ranked)], rounds // _WALKS, target, random)
        best = min(best, walked, key=lambda result: result.arena_bytes)
    return best


def _walked(shelf: _Shelf, start: _Arrangement, rounds: int, target: int, random: np.random.Generator) -> _Arrangement:
    """Return the best result of a walk over sequences."""
    best = current = start
    memory = [start.arena_bytes] * _MEMORY
    for turn in range(rounds):
        if best.arena_bytes <= target or len(start.sequence) < 2:
            break
        trial = _placed(shelf, _changed(shelf.table, current, random))
        if trial.arena_bytes <= max(current.arena_bytes, memory[turn % _MEMORY]):
            current = trial
        memory[turn % _MEMORY] = current.arena_bytes
        best = min(best, current, key=lambda result: result.arena_bytes)
    return best


def _changed(table: _Table, result: _Arrangement, random: np.random.Generator) -> Integers:
    """Return the sequence with a block placed earlier, or two exchanged."""
    sequence = result.sequence
    tops = result.addresses[sequence] + table.size[sequence]
    highest = int(np.argmax(tops))
    kind = int(random.integers(4))
    if kind == 3:
        changed = sequence.copy()
        one, other = random.integers(len(sequence), size=2)
        changed[[one, other]] = changed[[other, one]]
        return changed
    rank = highest
    if kind == 2:
        begin, end = table.begin[table.part_start[sequence]], table.end[table.part_start[sequence]]
        beside = np.flatnonzero((begin < end[highest]) & (begin[highest] < end))
        rank = int(beside[random.integers(len(beside))])
    return np.insert(np.delete(sequence, rank), int(random.integers(rank + 1)), sequence[rank])


def _placed(shelf: _Shelf, sequence: Integers) -> _Arrangement:
    addresses, arena = _place(shelf.table, sequence, shelf.alignment, shelf.bottom)
    return _Arrangement(sequence, addresses, int(arena))


@compiled
def _place(table: _Table, sequence: Integers, alignment: int, bottom: int) -> tuple[Integers, int]:
    """Place the blocks of a sequence one by one, each into the tightest hole; return addresses and arena."""
    parts = len(table.low)
    addresses, arena = np.zeros(len(table.size), np.int64), bottom
    placed_low, placed_high = np.empty(parts, np.int64), np.empty(parts, np.int64)
    placed_begin, placed_end, count = np.empty(parts, np.int64), np.empty(parts, np.int64), 0
    for block in sequence:
        mine = range(table.part_start[block], table.part_start[block + 1])
        below, above, taken = np.empty(count * len(mine), np.int64), np.empty(count * len(mine), np.int64), 0
        for part in mine:
            for other in range(count):
                if placed_begin[other] < table.end[part] and table.begin[part] < placed_end[other]:
                    below[taken] = placed_low[other] - table.high[part]
                    above[taken] = placed_high[other] - table.low[part]
                    taken += 1
        address = _tightest(below[:taken], above[:taken], alignment, bottom)
        addresses[block] = address
        arena = max(arena, address + int(table.size[block]))
        for part in mine:
            placed_low[count], placed_high[count] = address + table.low[part], address + table.high[part]
            placed_begin[count], placed_end[count] = table.begin[part], table.end[part]
            count += 1
    return addresses, arena


@compiled
def _tightest(below: Integers, above: Integers, alignment: int, bottom: int) -> int:
    """Return the address with the least room to spare; an address a is free unless below < a < above for some pair."""
    address, spare, cursor = -1, -1, bottom
    for at in np.argsort(below, kind="mergesort"):
        room = int(below[at]) - cursor
        if room >= 0 and (address < 0 or room < spare):
            address, spare = cursor, room
        if above[at] > cursor:
            cursor = (int(above[at]) + alignment - 1) // alignment * alignment
    return cursor if address < 0 else address
