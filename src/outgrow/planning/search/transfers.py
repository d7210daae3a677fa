"""When do bytes move? Given how much of each gap shall be swapped, the transfers in time, and the seconds they cost.

The schedule walks over the ops once, with a clock, both lanes of the link and the memory that is promised:

    promised(k) = live bytes at op k without the swapped storages that rest then, plus workspace
    held(k)     = copies out that have not ended when op k begins
    reserved(k) = pieces already on their way back for a later op

    at the boundary before op k
      1. copies out that have ended free their bytes; while promised + held + reserved exceeds the capacity, the
         clock waits for the next copy out to end (a stall)
      2. what op k itself uses is brought back, whatever is missing of it
      3. pieces for later ops are brought back, in the order of their use, as long as the lane would be idle during
         op k, the room lasts until their use, and their use is near: within `lead` seconds of the last moment
      4. op k waits for its pieces (a stall), and runs
    after op k, every gap that begins there is copied out, unless the tier already holds that version

A gap may move in part, as much as room is lacking: the first bytes of the storage leave, the others stay.

A gap that begins before op 0 is away from the start, and the tier holds its version; one that ends behind the last op
is copied out before the step ends. Both are gaps of storages that are stowed between steps, and always chosen.

Moving in pieces lets half of a storage come back while only half of its room is free. The seconds found are those
that `simulation.replay` finds for the derived graph, or more: a copy out that is called off, since its next use comes
first, keeps its turn here. Compiled, since the search asks for thousands of schedules.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from outgrow.ir.machine import LinkRates
from outgrow.planning.arrays import Flags, Integers, Reals
from outgrow.planning.compiled import compiled
from outgrow.planning.search.heights import height, heights_of, highest, lift
from outgrow.planning.search.residence import Gaps, without

_SLACK = 1 + 1e-9
"""What rounding may add to a sum of seconds."""


class Rates(NamedTuple):
    """What a link does: seconds a byte out and back, seconds until a copy begins, whether both ways share one lane."""

    out: float
    back: float
    latency: float
    half_duplex: bool


class Transfers(NamedTuple):
    """The schedule of the chosen gaps; per gap the op before which it is dropped (-1: kept after all, or away before).

    `seconds` is infinite where the capacity does not hold, and `excess_bytes` says by how much it fails there. A
    clean gap needs no copy out. Pieces are the bytes `piece_begin:piece_end` of a gap, brought back before an op.
    """

    seconds: float
    excess_bytes: int
    dropped: Integers
    is_clean: Flags
    piece_gap: Integers
    piece_begin: Integers
    piece_end: Integers
    piece_before: Integers


PlainTransfers: TypeAlias = tuple[float, int, Integers, Flags, Integers, Integers, Integers, Integers]
"""The fields of `Transfers`."""


def rates(link: LinkRates) -> Rates:
    """Return what a link does."""
    return Rates(1 / link.out_bytes_per_second, 1 / link.in_bytes_per_second, link.latency_seconds, link.half_duplex)


@compiled
def schedule(  # noqa: C901, PLR0912, PLR0915
    seconds: Reals, live: Integers, gaps: Gaps, moved: Integers, capacity: int, link: Rates, lead: float,
    piece_bytes: int, limit: float = np.inf,
) -> PlainTransfers:  # fmt: skip
    """The schedule of this module, for ops of these seconds and live bytes, of whose gaps `moved` bytes move.

    It is given up, with infinite seconds, once it must take more seconds than `limit`.

    Returns the fields of `Transfers`.

    One function, since its steps share a dozen arrays: passing these on would count references at every op, which takes
    ten times as long as all the rest. Were the steps functions that numba writes in place, this would be as quick,
    but take twice as long to compile, which is waited for before a first plan.
    """
    instance, begin, end, dirty = gaps.instance, gaps.begin, gaps.end, gaps.dirty
    out_rate, in_rate, latency, half_duplex = link.out, link.back, link.latency, link.half_duplex
    ops, count = len(seconds), len(begin)
    dropped = np.full(count, -1, np.int64)
    is_clean = np.zeros(count, np.bool_)
    room_for_pieces = 0
    instances = 0
    smallest = capacity
    for gap in range(count):
        instances = max(instances, instance[gap] + 1)
        if moved[gap]:
            room_for_pieces += 2 + moved[gap] // piece_bytes
            smallest = min(smallest, moved[gap] % piece_bytes or piece_bytes)
    promises = heights_of(without(live, begin, end, moved))
    piece_gap = np.empty(room_for_pieces, np.int64)
    piece_begin = np.empty(room_for_pieces, np.int64)
    piece_end = np.empty(room_for_pieces, np.int64)
    piece_before = np.empty(room_for_pieces, np.int64)
    pieces = 0
    elapsed = np.empty(ops + 1)
    elapsed[0] = 0.0
    for step in range(ops):
        elapsed[step + 1] = elapsed[step] + seconds[step]
    out_end = np.zeros(count)
    back_end = np.zeros(count)
    back = np.zeros(count, np.int64)
    copied = np.zeros(instances, np.int64)  # bytes of the present version that the tier holds
    held = np.empty(count, np.int64)
    away = np.empty(count, np.int64)  # from the last use to the next
    helds = aways = ready = 0  # ready: how many of those away, the soonest used first, are back in full
    missing = 0  # bytes of the storages that are away
    clock = out_free = in_free = 0.0
    following = 0
    while following < count and begin[following] < 0:
        following += 1
    for gap in range(following - 1, -1, -1):  # stowed before the step, the soonest used last
        copied[instance[gap]] = moved[gap]
        is_clean[gap] = True
        away[aways] = gap
        aways += 1
        missing += moved[gap]
    excess = 0
    is_late = False
    for step in range(ops):
        is_late = clock + (elapsed[ops] - elapsed[step]) > limit * _SLACK
        if is_late:
            break
        promised = height(promises, step)
        # 1. free what has left, and wait where room is lacking
        held_bytes = 0
        for at in range(helds):
            if end[held[at]] > step:
                held_bytes += moved[held[at]]
        kept = 0
        for at in range(helds):
            gap = held[at]
            if end[gap] <= step:
                copied[instance[gap]] = 0
            elif out_end[gap] <= clock or promised + held_bytes > capacity:
                clock = max(clock, out_end[gap])
                dropped[gap] = step
                held_bytes -= moved[gap]
                if end[gap] == ops:
                    continue
                place = aways
                while place > 0 and (
                    end[away[place - 1]] < end[gap]
                    or (end[away[place - 1]] == end[gap] and begin[away[place - 1]] <= begin[gap])
                ):
                    away[place] = away[place - 1]
                    place -= 1
                away[place] = gap
                ready = min(ready, aways - place)
                aways += 1
                missing += moved[gap]
            else:
                held[kept] = gap
                kept += 1
        helds = kept
        if promised + held_bytes > capacity:
            excess = int(promised + held_bytes - capacity)
            break
        # 2. bring back what this op uses
        for at in range(aways - 1, -1, -1):
            gap = away[at]
            if end[gap] != step:
                break
            if back[gap] < moved[gap]:
                part = moved[gap] - back[gap]
                missing -= part
                back_end[gap] = max(clock, in_free) + latency + part * in_rate
                in_free = back_end[gap]
                if half_duplex:
                    out_free = max(out_free, in_free)
                piece_gap[pieces], piece_before[pieces] = gap, step
                piece_begin[pieces], piece_end[pieces] = back[gap], moved[gap]
                pieces += 1
                back[gap] = moved[gap]
        # 3. bring back pieces for later ops
        busy_until = clock + seconds[step]
        ahead, behind = 0.0, (missing * in_rate + aways * latency) * _SLACK
        most, seen = promised + held_bytes, step + 1
        while ready < aways and back[away[aways - 1 - ready]] == moved[away[aways - 1 - ready]]:
            ready += 1
        for at in range(aways - 1 - ready, -1, -1):
            if in_free >= busy_until or capacity - most < smallest:
                break
            gap = away[at]
            if end[gap] <= step or back[gap] == moved[gap]:
                continue
            ahead += latency + (moved[gap] - back[gap]) * in_rate
            until_use = elapsed[end[gap]] - elapsed[step] - max(0.0, in_free - clock)
            if until_use - behind > lead:
                break
            if until_use - ahead > lead:
                continue
            most = max(most, highest(promises, seen, int(end[gap])))
            seen = max(seen, int(end[gap]))
            while in_free < busy_until and back[gap] < moved[gap]:
                part = min(moved[gap] - back[gap], piece_bytes)
                if capacity - most < part:
                    break
                back_end[gap] = max(clock, in_free) + latency + part * in_rate
                in_free = back_end[gap]
                if half_duplex:
                    out_free = max(out_free, in_free)
                piece_gap[pieces], piece_before[pieces] = gap, step
                piece_begin[pieces], piece_end[pieces] = back[gap], back[gap] + part
                pieces += 1
                back[gap] += part
                missing -= part
                lift(promises, step, int(end[gap]), int(part))
                most += part
        # 4. wait for what this op uses, and run it
        while aways > 0 and end[away[aways - 1]] == step:
            aways -= 1
            ready = max(0, ready - 1)
            gap = away[aways]
            clock = max(clock, back_end[gap])
        clock += seconds[step]
        # after it, copies out begin
        while following < count and begin[following] == step:
            gap = following
            following += 1
            if not moved[gap]:
                if dirty[gap]:
                    copied[instance[gap]] = 0
                continue
            is_clean[gap] = not dirty[gap] and copied[instance[gap]] >= moved[gap]
            out_end[gap] = clock
            if not is_clean[gap]:
                out_end[gap] = max(clock, out_free) + latency + moved[gap] * out_rate
                out_free = out_end[gap]
                if half_duplex:
                    in_free = max(in_free, out_free)
                copied[instance[gap]] = moved[gap]
            held[helds] = gap
            helds += 1
    for at in range(helds):
        if end[held[at]] == ops:
            dropped[held[at]] = ops
            clock = max(clock, out_end[held[at]])
    is_late = is_late or clock > limit * _SLACK
    total = np.inf if excess > 0 or is_late else float(clock)
    return (
        total, excess, dropped, is_clean,
        piece_gap[:pieces].copy(), piece_begin[:pieces].copy(), piece_end[:pieces].copy(), piece_before[:pieces].copy(),
    )  # fmt: skip
