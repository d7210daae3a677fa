"""Which gaps are swapped, and how much of each? Chosen by rules from live bytes and what lies beyond each gap.

Gaps of storages that are stowed between steps are always chosen. Of the others, the rules take what makes the live
bytes fit into a share of the capacity. Compiled, since the search asks for thousands of choices.
"""

from typing import NamedTuple

import numpy as np

from outgrow.planning.arrays import Flags, Integers, Reals
from outgrow.planning.compiled import compiled
from outgrow.planning.search.heights import heights_of, highest, lift
from outgrow.planning.search.residence import Gaps, without

WIDEST, FARTHEST, PARTLY = 0, 1, 2
"""How gaps are chosen: `widest`; `farthest`, whole gaps; and `farthest`, only as much as room is lacking."""


_TAKEN = -1.0
"""The score of a gap that was chosen: below those of all others."""


class SwapRule(NamedTuple):
    """How gaps are chosen, one of the three, and with which share of the capacity left free, the `headroom`.

    Copies may come back `lead` early, as a share of the step.
    """

    way: int = FARTHEST
    headroom: float = 0.0
    lead: float = 0.1


PLAIN = SwapRule()
"""The rule where nothing else is said."""


@compiled
def choose(live: Integers, seconds: Reals, gaps: Gaps, capacity: int, rule: SwapRule, part: int) -> Integers:
    """Choose how many bytes of each gap to swap by a rule, so that the share `headroom` of the capacity stays free.

    Gaps of storages that are stowed between steps move whole, whatever the rule. What moves of a gap that may move in
    part grows and shrinks by multiples of `part`.
    """
    begin, end, size = gaps.begin, gaps.end, gaps.size
    target = int(capacity * (1 - rule.headroom))
    is_stowed = (begin < 0) | (end == len(live))
    others = np.flatnonzero(~is_stowed)
    moved = np.where(is_stowed, size, 0)
    if len(others) < len(moved):
        live = without(live, begin, end, moved)
    begin, end, size, whole = begin[others], end[others], size[others], gaps.whole[others] | (rule.way != PARTLY)
    if rule.way == WIDEST:
        moved[others] = widest(live, seconds, begin, end, size, target)
    else:
        moved[others] = farthest(live, begin, end, size, whole, target, part)
    return moved


@compiled
def farthest(
    live: Integers, begin: Integers, end: Integers, size: Integers, whole: Flags, target: int, part: int
) -> Integers:
    """Choose gaps to swap: at each op over the target, the storage whose next use is farthest (Belady 1966).

    Of several with the same next use the largest is taken. Gaps that the target has room for in the end are given back.
    """
    gaps, ops = len(begin), len(live)
    moved = np.zeros(gaps, np.int64)
    resting = np.empty(gaps, np.int64)
    ending = np.zeros(ops + 1, np.int64)
    rests = following = away = 0
    for step in range(ops):
        while following < gaps and begin[following] < step:
            resting[rests] = following
            rests += 1
            following += 1
        away -= ending[step]
        if live[step] - away <= target:
            continue
        kept = 0
        for at in range(rests):
            if end[resting[at]] > step:
                resting[kept] = resting[at]
                kept += 1
        rests = kept
        while live[step] - away > target:
            best, place = -1, -1
            for at in range(rests):
                gap = resting[at]
                if best < 0 or end[gap] > end[best] or (end[gap] == end[best] and size[gap] > size[best]):
                    best, place = gap, at
            if best < 0:
                break
            more = size[best] - moved[best]
            if not whole[best]:
                more = min(more, -((target - live[step] + away) // part) * part)
            moved[best] += more
            away += more
            ending[end[best]] += more
            if moved[best] == size[best]:
                rests -= 1
                resting[place] = resting[rests]
    _give_back(without(live, begin, end, moved) - target, begin, end, moved, whole, part)
    return moved


@compiled
def widest(live: Integers, seconds: Reals, begin: Integers, end: Integers, size: Integers, target: int) -> Integers:
    """Choose gaps to swap: the one that covers the most byte-seconds over the target for each byte it moves.

    The gaps are given by begin. Of several that cover as much the first is taken.
    """
    gaps, ops = len(begin), len(live)
    moved = np.zeros(gaps, np.int64)
    over = live - target
    weight = seconds + seconds.mean()
    score = np.empty(gaps)
    for gap in range(gaps):
        score[gap] = _covered(over, weight, begin[gap], end[gap], size[gap])
    first, last = 0, ops
    while (score > 0).any():
        while first < ops and over[first] <= 0:
            first += 1
        if first == ops:
            break
        while over[last - 1] <= 0:
            last -= 1
        best = _widest_gap(over, weight, np.maximum(begin, first - 1), np.minimum(end, last), size, score)
        if score[best] <= 0:
            break
        score[best] = _TAKEN
        moved[best] = size[best]
        for inside in range(begin[best] + 1, end[best]):
            over[inside] -= size[best]
    _give_back(over, begin, end, moved, np.ones(gaps, np.bool_), 1)
    return moved


@compiled
def _widest_gap(over: Integers, weight: Reals, begin: Integers, end: Integers, size: Integers, score: Reals) -> int:
    """The gap that covers the most, whose score is brought up to date, as are others on the way.

    What was scored before covers less by now, or as much: where an old score is beaten, so is the gap. One behind the
    best so far that ends no later and is no smaller lies within that, and covers no more for each byte.
    """
    best = int(np.argmax(score))
    score[best] = _covered(over, weight, begin[best], end[best], size[best])
    for gap in range(len(score)):
        is_within = best <= gap and end[gap] <= end[best] and size[best] <= size[gap]
        if not is_within and _is_better(score, gap, best):
            score[gap] = _covered(over, weight, begin[gap], end[gap], size[gap])
            if _is_better(score, gap, best):
                best = gap
    return best


@compiled
def _is_better(score: Reals, gap: int, other: int) -> bool:
    return score[gap] > score[other] or (score[gap] == score[other] and gap < other)


@compiled
def _covered(over: Integers, weight: Reals, begin: int, end: int, size: int) -> float:
    """Byte-seconds over the target that a gap covers, for each of its bytes."""
    total = 0.0
    for inside in range(begin + 1, end):
        if over[inside] > 0:
            total += min(over[inside], size) * weight[inside]
    return total / size


@compiled
def _give_back(over: Integers, begin: Integers, end: Integers, moved: Integers, whole: Flags, part: int) -> None:
    """Take back, of the chosen gaps, what the target has room for, the shortest gaps first.

    Of a gap that moves in part, what still moves is a multiple of `part` bytes.
    """
    heights, length = heights_of(over), end - begin
    for gap in np.argsort(length, kind="mergesort"):
        first, last, spare = int(begin[gap] + 1), int(end[gap]), int(moved[gap])
        if not spare:
            continue
        spare = min(spare, -highest(heights, first, last))
        if spare < moved[gap]:
            left = -(-(int(moved[gap]) - spare) // part) * part
            spare = 0 if whole[gap] else max(0, int(moved[gap]) - left)
        if spare > 0:
            moved[gap] -= spare
            lift(heights, first, last, spare)
