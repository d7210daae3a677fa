"""When do the bytes move that a published method swaps? Out at once, back when an op triggers it.

The methods decide which storage rests over which gap, and at which step its copy back is triggered. The rest is
common to them, as it is to the frameworks they were written for: a walk over the ops with a clock, the two lanes
of the link, first in, first out, and the memory.

    promised(k) = live bytes at op k without the chosen gaps that cover k, plus storages that are back early or kept
    held(k)     = storages that are still being copied out when op k begins

    at the boundary before op k
      1. a storage still on its way out whose copy back is triggered already is kept after all, if it has room
      2. storages that have left are freed; while promised + held exceeds the capacity, the clock waits for the next
         copy out to end (a stall), so that memory may free a storage earlier than time would
      3. what op k uses is brought back
      4. what has been triggered is brought back, the nearest use first, if the lane is free before op k ends and there
         is room from k to the use; otherwise it is asked again at the next op
      5. op k waits for what it uses (a stall), and runs
    after op k, every chosen gap that begins there is copied out, unless the next tier holds that version already

Whole storages move, as in the papers. A method never fails for lack of room while it prefetches: that is in its favour.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from outgrow.analysis.liveness import Gap
from outgrow.plan import Piece, Swap
from outgrow.planning.arrays import Integers
from outgrow.planning.problem import Problem
from outgrow.planning.published.profile import Profile


@dataclass(frozen=True, slots=True)
class SwapSchedule:
    """The swaps, the seconds of the step, and the stall that each swapped gap causes."""

    swaps: tuple[Swap, ...]
    seconds: float
    stalls: tuple[tuple[Gap, float], ...]


def promised_bytes(profile: Profile, away: Iterable[Gap]) -> Integers:
    """Return the live bytes at each op while the storages of these gaps are away."""
    promised = profile.live.copy()
    for gap in away:
        promised[gap.begin + 1 : gap.end] -= gap.size_bytes
    return promised


def fewest_away(profile: Profile, maps: Sequence[Sequence[Gap]], capacity: int) -> int:
    """Return how many maps, the first of these, have to be away so that the step fits, by bisection: all are enough."""
    too_few, enough = 0, len(maps)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if int(promised_bytes(profile, chain.from_iterable(maps[:middle])).max()) <= capacity:
            enough = middle
        else:
            too_few = middle
    return enough


def latest_trigger(profile: Profile, gap: Gap, seconds: float) -> int:
    """Return the last step within a gap that begins at `seconds` of arithmetic or earlier; else the gap's first."""
    step = int(np.searchsorted(profile.elapsed, seconds, side="right")) - 1
    return min(max(step, gap.begin + 1), gap.end)


def triggered(problem: Problem, profile: Profile, triggers: Mapping[Gap, int]) -> SwapSchedule:
    """Return the swaps of these gaps, which free enough, in the order of their copies back.

    The copy back of a gap begins directly before the op at its trigger or later. `stalls` are the seconds for which the
    op at the end of a gap waits for the copy back.
    """
    while True:
        walk = _Walk(problem, profile, triggers)
        assert int(walk.promised.max(initial=0)) <= walk.capacity, "the gaps were chosen so that the step fits"
        found = walk.run()
        if not walk.kept:
            return found
        kept = frozenset(walk.kept)
        triggers = {gap: step for gap, step in triggers.items() if gap not in kept}


@dataclass(eq=False)
class _Trip:
    """One storage on its way over one gap."""

    gap: Gap
    trigger: int
    after: str | None
    out_end: float
    dropped: str = ""
    back: str = ""
    back_end: float = 0.0
    stall: float = 0.0


class _Walk:
    """The clock, the lanes and the memory during one walk over the ops."""

    def __init__(self, problem: Problem, profile: Profile, triggers: Mapping[Gap, int]) -> None:
        self.profile, self.triggers, self.link = profile, triggers, problem.machine.link
        self.capacity = problem.budget.capacity_bytes
        self.promised = promised_bytes(profile, tuple(triggers))
        self.clock = self.out_free = self.in_free = 0.0
        self.held: list[_Trip] = []
        self.away: list[_Trip] = []
        self.returning: list[_Trip] = []
        self.trips: list[_Trip] = []
        self.kept: list[Gap] = []
        self.in_tier: set[str] = set()
        self.departures: dict[int, list[Gap]] = {}
        for gap in profile.gaps:
            self.departures.setdefault(gap.begin, []).append(gap)

    def run(self) -> SwapSchedule:
        for step, op in enumerate(self.profile.ops):
            self._keep(step)
            self._drop(step, op.name)
            self._fetch(step, op.name)
            self._await(step)
            self.clock += float(self.profile.seconds[step])
            self._depart(step, op.name)
        names = self.profile.ops
        swaps = tuple(
            Swap(
                trip.gap.storage,
                trip.after,
                trip.dropped,
                (Piece(0, trip.gap.size_bytes, trip.back),),
                names[trip.gap.end].name,
            )
            for trip in self.trips
        )
        return SwapSchedule(swaps, self.clock, tuple((trip.gap, trip.stall) for trip in self.trips))

    def _keep(self, step: int) -> None:
        for trip in sorted(self.held, key=lambda trip: trip.gap.end):
            gap = trip.gap
            if gap.end == step or (trip.trigger <= step and self._lasts(gap, step)):
                self.held.remove(trip)
                self.kept.append(gap)
                self.promised[step : gap.end] += gap.size_bytes

    def _lasts(self, gap: Gap, step: int) -> bool:
        """Whether there is room for the storage from `step` to its use, once all that is held has left."""
        return int(self.promised[step : gap.end].max()) + gap.size_bytes <= self.capacity

    def _fits(self, gap: Gap, step: int, held_bytes: int) -> bool:
        """Whether there is room for the storage from `step` to its use, beside what is held at `step`."""
        has_room = int(self.promised[step]) + held_bytes + gap.size_bytes <= self.capacity
        return has_room and self._lasts(gap, step)

    def _held_bytes(self) -> int:
        return sum(trip.gap.size_bytes for trip in self.held)

    def _drop(self, step: int, op: str) -> None:
        held_bytes = self._held_bytes()
        for trip in sorted(self.held, key=lambda trip: trip.out_end):
            lacks_room = int(self.promised[step]) + held_bytes > self.capacity
            if trip.out_end > self.clock and not lacks_room:
                break
            self.clock = max(self.clock, trip.out_end)
            trip.dropped = op
            held_bytes -= trip.gap.size_bytes
            self.held.remove(trip)
            self.away.append(trip)
            self.in_tier.add(trip.gap.storage)

    def _fetch(self, step: int, op: str) -> None:
        busy_until = self.clock + float(self.profile.seconds[step])
        held_bytes = self._held_bytes()
        for trip in sorted(self.away, key=lambda trip: trip.gap.end):
            gap = trip.gap
            if gap.end == step:
                self._bring(trip, op)
            elif trip.trigger <= step and self.in_free <= busy_until and self._fits(gap, step, held_bytes):
                self.promised[step : gap.end] += gap.size_bytes
                self._bring(trip, op)

    def _bring(self, trip: _Trip, before: str) -> None:
        trip.back = before
        trip.back_end = max(self.clock, self.in_free) + self.link.in_seconds(trip.gap.size_bytes)
        self.in_free = trip.back_end
        if self.link.half_duplex:
            self.out_free = trip.back_end
        self.away.remove(trip)
        self.returning.append(trip)
        self.trips.append(trip)

    def _await(self, step: int) -> None:
        for trip in [trip for trip in self.returning if trip.gap.end == step]:
            trip.stall = max(0.0, trip.back_end - self.clock)
            self.clock = max(self.clock, trip.back_end)
            self.returning.remove(trip)

    def _depart(self, step: int, op: str) -> None:
        for gap in self.departures.get(step, ()):
            if gap.dirty:
                self.in_tier.discard(gap.storage)
            if gap not in self.triggers:
                continue
            is_copied = gap.storage in self.in_tier
            trip = _Trip(gap, self.triggers[gap], None if is_copied else op, self.clock)
            if not is_copied:
                trip.out_end = max(self.clock, self.out_free) + self.link.out_seconds(gap.size_bytes)
                self.out_free = trip.out_end
                if self.link.half_duplex:
                    self.in_free = trip.out_end
            self.held.append(trip)
