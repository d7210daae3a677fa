"""When do bytes move? Given the gaps that shall be swapped, the transfers in time, and the seconds they cost.

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

Moving in pieces lets half of a storage come back while only half of its room is free. The seconds found are those
that `simulation.replay` finds for the derived graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outgrow.analysis.liveness import Gap, gaps, live_bytes
from outgrow.ir.graph import Graph, Op
from outgrow.plan import Piece, Swap
from outgrow.planning.problem import Problem


@dataclass(frozen=True)
class Profile:
    """What the schedule needs to know of a graph: its ops, seconds, live bytes and gaps."""

    ops: tuple[Op, ...]
    seconds: NDArray[np.float64]
    live: NDArray[np.int64]
    gaps: tuple[Gap, ...]

    @property
    def elapsed(self) -> NDArray[np.float64]:
        """Seconds of arithmetic before each op."""
        return np.concatenate(([0.0], np.cumsum(self.seconds)))


def profile_of(problem: Problem, graph: Graph) -> Profile:
    """Return the profile of a graph without transfers."""
    seconds = [problem.costs[op.captured].seconds if op.captured in problem.costs else 0.0 for op in graph.ops]
    live = live_bytes(graph, problem.workspace)
    found = gaps(graph, minimum_bytes=problem.minimum_bytes)
    return Profile(graph.ops, np.array(seconds), np.array(live, dtype=np.int64), found)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The swaps, the seconds of the step, and the stall that each swapped gap causes."""

    swaps: tuple[Swap, ...]
    seconds: float
    stalls: tuple[tuple[Gap, float], ...]


@dataclass
class _Trip:
    """One gap on its way: out, away, and back in pieces."""

    gap: Gap
    after: str | None
    out_end: float = 0.0
    dropped: str | None = None
    back_bytes: int = 0
    back_end: float = 0.0
    stall: float = 0.0
    pieces: list[Piece] = field(default_factory=list[Piece])

    @property
    def missing_bytes(self) -> int:
        return self.gap.size_bytes - self.back_bytes


class _Walk:
    """The clock, the lanes and the memory during one walk over the ops."""

    def __init__(self, problem: Problem, profile: Profile, chosen: Sequence[Gap], lead_seconds: float) -> None:
        self.problem, self.profile, self.lead_seconds = problem, profile, lead_seconds
        self.capacity = problem.budget.capacity_bytes
        self.promised = profile.live.copy()
        for gap in chosen:
            self.promised[gap.begin + 1 : gap.end] -= gap.size_bytes
        self.elapsed = profile.elapsed
        self.clock: float = 0.0
        self.out_free: float = 0.0
        self.in_free: float = 0.0
        self.held: list[_Trip] = []
        self.away: list[_Trip] = []
        self.done: list[_Trip] = []
        self.copied: set[str] = set()
        self.by_begin: dict[int, list[Gap]] = {}
        for gap in profile.gaps:
            self.by_begin.setdefault(gap.begin, []).append(gap)
        self.chosen = frozenset(chosen)

    def run(self) -> Schedule | None:
        """Return the schedule, or None if the capacity does not hold at some op."""
        for step, op in enumerate(self.profile.ops):
            if self.held and not self._release(step, op.name):
                return None
            if not self.held and self.promised[step] > self.capacity:
                return None
            if self.away:
                self._fetch_now(step, op.name)
                self._fetch_ahead(step, op.name)
                self._await(step)
            self.clock += float(self.profile.seconds[step])
            for gap in self.by_begin.get(step, ()):
                self._depart(gap, op.name)
        swaps = tuple(
            Swap(trip.gap.storage, trip.after, trip.dropped, tuple(trip.pieces), self.profile.ops[trip.gap.end].name)
            for trip in sorted(self.done, key=lambda trip: (trip.gap.begin, trip.gap.end))
            if trip.dropped is not None
        )
        return Schedule(swaps, self.clock, tuple((trip.gap, trip.stall) for trip in self.done))

    def _depart(self, gap: Gap, after: str) -> None:
        if gap not in self.chosen:
            if gap.dirty:
                self.copied.discard(gap.storage)
            return
        link = self.problem.machine.link
        clean = not gap.dirty and gap.storage in self.copied
        trip = _Trip(gap, None if clean else after, out_end=self.clock)
        if not clean:
            trip.out_end = max(self.clock, self.out_free) + link.out_seconds(gap.size_bytes)
            self.out_free = trip.out_end
            if link.half_duplex:
                self.in_free = max(self.in_free, trip.out_end)
            self.copied.add(gap.storage)
        self.held.append(trip)

    def _release(self, step: int, op: str) -> bool:
        """Free what has been copied out; wait for more as long as op `step` lacks room."""
        held_bytes = sum(trip.gap.size_bytes for trip in self.held if trip.gap.end > step)
        waiting: list[_Trip] = []
        for trip in self.held:
            lacks_room = self.promised[step] + held_bytes > self.capacity
            if trip.gap.end <= step:
                self.copied.discard(trip.gap.storage)
                self.done.append(trip)
            elif trip.out_end <= self.clock or lacks_room:
                trip.stall += max(0.0, trip.out_end - self.clock)
                self.clock = max(self.clock, trip.out_end)
                trip.dropped = op
                held_bytes -= trip.gap.size_bytes
                self.away.append(trip)
            else:
                waiting.append(trip)
        self.held = waiting
        self.away.sort(key=lambda trip: (trip.gap.end, trip.gap.begin))
        return bool(self.promised[step] + held_bytes <= self.capacity)

    def _bring(self, trip: _Trip, size_bytes: int, before: str) -> None:
        link = self.problem.machine.link
        trip.back_end = max(self.clock, self.in_free) + link.in_seconds(size_bytes)
        self.in_free = trip.back_end
        if link.half_duplex:
            self.out_free = max(self.out_free, trip.back_end)
        trip.pieces.append(Piece(trip.back_bytes, trip.back_bytes + size_bytes, before))
        trip.back_bytes += size_bytes

    def _fetch_now(self, step: int, op: str) -> None:
        for trip in self.away:
            if trip.gap.end == step and trip.missing_bytes:
                self._bring(trip, trip.missing_bytes, op)

    def _fetch_ahead(self, step: int, op: str) -> None:
        busy_until = self.clock + float(self.profile.seconds[step])
        held_bytes = sum(trip.gap.size_bytes for trip in self.held)
        ahead = 0.0
        for trip in self.away:
            if trip.gap.end <= step or not trip.missing_bytes:
                continue
            ahead += self.problem.machine.link.in_seconds(trip.missing_bytes)
            until_use = float(self.elapsed[trip.gap.end] - self.elapsed[step])
            if until_use - max(0.0, self.in_free - self.clock) - ahead > self.lead_seconds:
                continue
            while self.in_free < busy_until and trip.missing_bytes:
                window = self.promised[step : trip.gap.end]
                room = self.capacity - max(int(window.max()), int(window[0]) + held_bytes)
                size = min(trip.missing_bytes, self.problem.piece_bytes)
                if room < size:
                    break
                self._bring(trip, size, op)
                window += size
            if self.in_free >= busy_until:
                break

    def _await(self, step: int) -> None:
        back = [trip for trip in self.away if trip.gap.end == step]
        for trip in back:
            trip.stall += max(0.0, trip.back_end - self.clock)
            self.clock = max(self.clock, trip.back_end)
            self.away.remove(trip)
            self.done.append(trip)


def schedule(problem: Problem, profile: Profile, chosen: Sequence[Gap], lead_seconds: float) -> Schedule | None:
    """Return the transfers for the chosen gaps, or None if the capacity does not hold."""
    return _Walk(problem, profile, chosen, lead_seconds).run()


def choose_gaps(profile: Profile, capacity_bytes: int, *, by_distance: bool) -> tuple[Gap, ...]:
    """Choose gaps until the live bytes are within the capacity wherever gaps can bring them there.

    `by_distance`: at the first op over capacity take the storage whose next use is farthest (Belady 1966).
    Otherwise take the gap that covers the most byte-seconds over capacity for each byte it moves.
    """
    excess = (profile.live - capacity_bytes).astype(np.float64)
    weight = profile.seconds + float(profile.seconds.mean())
    left = list(profile.gaps)
    chosen: list[Gap] = []
    while left and excess.max() > 0:
        first = int(np.argmax(excess > 0))
        best, best_score = None, 0.0
        for gap in left:
            inside = slice(gap.begin + 1, gap.end)
            if by_distance:
                score = float(gap.end) if gap.begin < first < gap.end else 0.0
            else:
                covered = np.clip(excess[inside], 0.0, gap.size_bytes)
                score = float((covered * weight[inside]).sum()) / gap.size_bytes
            if score > best_score:
                best, best_score = gap, score
        if best is None:
            excess[first] = 0.0
            continue
        excess[best.begin + 1 : best.end] -= best.size_bytes
        left.remove(best)
        chosen.append(best)
    return _without_needless(chosen, profile, capacity_bytes)


def _without_needless(chosen: list[Gap], profile: Profile, capacity_bytes: int) -> tuple[Gap, ...]:
    """Give back the gaps, smallest first, without which the capacity holds as well."""
    live = profile.live.copy()
    for gap in chosen:
        live[gap.begin + 1 : gap.end] -= gap.size_bytes
    kept = list(chosen)
    for gap in sorted(chosen, key=lambda gap: (gap.end - gap.begin, gap.storage)):
        inside = live[gap.begin + 1 : gap.end]
        if (inside + gap.size_bytes <= capacity_bytes).all():
            inside += gap.size_bytes
            kept.remove(gap)
    return tuple(kept)
