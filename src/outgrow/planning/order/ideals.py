"""Which order keeps below a limit? A search over sets of jobs, level by level: level i has sets of i jobs.

    state      an ideal: the set of jobs that have run, the bytes held, and the peak so far
    next       each state with each job that waits for nothing any more, if the bytes at that job keep the limit
    merge      states of equal sets are one: the bytes held are equal, the lower peak is kept
    forced     if some job that may run leaves no more bytes held than before, it runs now, and nothing else is tried
    width      of each level the best `width` states are kept, by bytes held or by peak

Forcing loses nothing: in any order that goes on from the state and keeps the limit, pull the job to the front. The
bytes held after it are no more than before, and since `held` is submodular (see `jobs`) they stay no more than they
were behind each job that it passed. So if no level had more states than the width, the search is exhaustive: an
order is found if there is one. Otherwise it is a beam search.

Held, Wigner and Lawler's programmes over subsets are the root of this (Held and Karp 1962, "A dynamic programming
approach to sequencing problems", https://doi.org/10.1137/0110015). A set is known by the exclusive or of one random
word a job (Zobrist 1970, "A new hashing method with application for game playing"); two sets of 64-bit words that
collide would cost a state, never a wrong order.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.planning.arrays import Integers, starts
from outgrow.planning.compiled import compiled
from outgrow.planning.order.jobs import Jobs

Words = NDArray[np.uint64]


class Packed(NamedTuple):
    """Jobs as arrays; what belongs to job k is `flat[start[k]:start[k + 1]]`."""

    born: Integers
    workspace: Integers
    successor_start: Integers
    successors: Integers
    waits: Integers
    touch_start: Integers
    touches: Integers
    size: Integers
    uses: Integers
    words: Words
    start_bytes: int


class Found(NamedTuple):
    """The order that was found (None: none keeps the limit, or none that the search met) and its peak.

    `is_exhaustive` says that nothing was left out; `work` counts cells of arrays that were touched, about.
    """

    order: tuple[int, ...] | None
    peak_bytes: int
    is_exhaustive: bool
    work: int


def packed(jobs: Jobs) -> Packed:
    """Return jobs as arrays."""
    successor_start, successors = _flat(jobs.successors)
    touch_start, touches = _flat(jobs.touches)
    waits = np.array([len(earlier) for earlier in jobs.predecessors], dtype=np.int64)
    return Packed(
        np.array(jobs.born_bytes, dtype=np.int64),
        np.array(jobs.workspace_bytes, dtype=np.int64),
        successor_start,
        successors,
        waits,
        touch_start,
        touches,
        np.array(jobs.sizes, dtype=np.int64),
        np.array(jobs.uses, dtype=np.int64),
        np.random.default_rng(0).integers(1, 2**63, len(jobs), dtype=np.uint64),
        jobs.start_bytes,
    )


def _flat(rows: tuple[tuple[int, ...], ...]) -> tuple[Integers, Integers]:
    return starts([len(row) for row in rows]), np.array([item for row in rows for item in row], dtype=np.int64)


def search_ideals(jobs: Packed, limit_bytes: int, width: int, work: int, *, by_peak: bool = False) -> Found:
    """Return an order whose peak is at most `limit_bytes`; at most about `work` cells are touched."""
    order, peak, is_exhaustive, spent = _search(jobs, limit_bytes, width, work, by_peak)
    found = tuple(int(job) for job in order) if peak >= 0 else None
    return Found(found, int(peak), bool(is_exhaustive), int(spent))


class _States(NamedTuple):
    """Two levels of states, one of which is read while the other is written; the first index says which.

    Each state has what its jobs still wait for, the uses left of its storages, and the jobs that are ready.
    """

    waits: NDArray[np.int32]
    left: NDArray[np.int32]
    ready: NDArray[np.int32]
    readies: Integers
    held: Integers
    peak: Integers
    sets: Words


class _Offers(NamedTuple):
    """The states that may come next: each a state of this level (`parent`) and a place among its ready jobs."""

    held: Integers
    peak: Integers
    sets: Words
    parent: Integers
    place: Integers


@compiled
def _search(jobs: Packed, limit: int, width: int, work: int, by_peak: bool) -> tuple[Integers, int, bool, int]:
    count, storages = len(jobs.born), len(jobs.size)
    states = _first_state(jobs, width)
    parents, picks = np.empty((count, width), np.int32), np.empty((count, width), np.int32)
    alive, spent, is_exhaustive = 1, 0, True
    for level in range(count):
        here = level % 2
        offers = _offers(jobs, states, here, alive, limit)
        chosen, is_whole = _best(offers, width, by_peak)
        alive = len(chosen)
        is_exhaustive = is_exhaustive and is_whole
        spent += 50 * len(offers.held) + alive * (2 * count + storages)
        if alive == 0 or spent > work:
            return np.empty(0, np.int64), -1, is_exhaustive and alive == 0, spent
        for at in range(alive):
            parents[level, at] = offers.parent[chosen[at]]
            picks[level, at] = _advance(jobs, states, here, offers, chosen[at], at)
    ends = states.peak[count % 2, :alive]
    at = np.argmin(ends)
    peak = ends[at]
    order = np.empty(count, np.int64)
    for level in range(count - 1, -1, -1):
        order[level] = picks[level, at]
        at = parents[level, at]
    return order, peak, is_exhaustive, spent


@compiled
def _first_state(jobs: Packed, width: int) -> _States:
    """Return arrays for the states, with the state before any job in them."""
    count = len(jobs.born)
    waits = np.empty((2, width, count), np.int32)
    left = np.empty((2, width, len(jobs.size)), np.int32)
    ready, readies = np.empty((2, width, count), np.int32), np.zeros((2, width), np.int64)
    held, peak = np.zeros((2, width), np.int64), np.zeros((2, width), np.int64)
    waits[0, 0, :] = jobs.waits
    left[0, 0, :] = jobs.uses
    held[0, 0] = jobs.start_bytes
    for job in range(count):
        if jobs.waits[job] == 0:
            ready[0, 0, readies[0, 0]] = job
            readies[0, 0] += 1
    return _States(waits, left, ready, readies, held, peak, np.zeros((2, width), np.uint64))


@compiled
def _offers(jobs: Packed, states: _States, here: int, alive: int, limit: int) -> _Offers:
    """Return what each state may become by one job below the limit, or by the one that is forced."""
    most = np.sum(states.readies[here, :alive])
    held, peak, sets = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.uint64)
    parent, place = np.empty(most, np.int64), np.empty(most, np.int64)
    found = 0
    for state in range(alive):
        first = found
        before = states.held[here, state]
        for at in range(states.readies[here, state]):
            job = states.ready[here, state, at]
            now = before + jobs.born[job]
            running = now + jobs.workspace[job]
            if running > limit:
                continue
            for touch in range(jobs.touch_start[job], jobs.touch_start[job + 1]):
                storage = jobs.touches[touch]
                if states.left[here, state, storage] == 1:
                    now -= jobs.size[storage]
            if now <= before:
                found = first
            held[found], peak[found] = now, max(states.peak[here, state], running)
            sets[found] = states.sets[here, state] ^ jobs.words[job]
            parent[found], place[found] = state, at
            found += 1
            if now <= before:
                break
    return _Offers(held[:found], peak[:found], sets[:found], parent[:found], place[:found])


@compiled
def _best(offers: _Offers, width: int, by_peak: bool) -> tuple[Integers, bool]:
    """Return the best `width` offers of different sets, best first, and whether these are all."""
    first, second = (offers.peak, offers.held) if by_peak else (offers.held, offers.peak)
    ranks = np.argsort(second, kind="mergesort")
    ranks = ranks[np.argsort(first[ranks], kind="mergesort")]
    slots = 4
    while slots < 4 * min(width, len(ranks)):
        slots *= 2
    table = np.zeros(slots, np.uint64)
    chosen, found = np.empty(min(width, len(ranks)), np.int64), 0
    for one in ranks:
        word = offers.sets[one] | np.uint64(1)
        slot = np.int64(word >> np.uint64(20)) & (slots - 1)
        while table[slot] != np.uint64(0) and table[slot] != word:
            slot = (slot + 1) & (slots - 1)
        if table[slot] == word:
            continue
        if found == width:
            return chosen[:found], False
        table[slot] = word
        chosen[found] = one
        found += 1
    return chosen[:found], True


@compiled
def _advance(jobs: Packed, states: _States, here: int, offers: _Offers, offer: int, state: int) -> int:
    """Write the state that an offer leads to as number `state` of the next level; return the job that runs."""
    there, parent, at = 1 - here, offers.parent[offer], offers.place[offer]
    readies = states.readies[here, parent]
    job = states.ready[here, parent, at]
    states.waits[there, state, :] = states.waits[here, parent, :]
    states.left[there, state, :] = states.left[here, parent, :]
    states.ready[there, state, :readies] = states.ready[here, parent, :readies]
    states.held[there, state], states.peak[there, state] = offers.held[offer], offers.peak[offer]
    states.sets[there, state] = offers.sets[offer]
    readies -= 1
    states.ready[there, state, at] = states.ready[there, state, readies]
    for touch in range(jobs.touch_start[job], jobs.touch_start[job + 1]):
        states.left[there, state, jobs.touches[touch]] -= 1
    for edge in range(jobs.successor_start[job], jobs.successor_start[job + 1]):
        later = jobs.successors[edge]
        states.waits[there, state, later] -= 1
        if states.waits[there, state, later] == 0:
            states.ready[there, state, readies] = later
            readies += 1
    states.readies[there, state] = readies
    return job
