"""In which order do workers run their calls, so that exchanges go on beside arithmetic?

    job     a call of a divided step: what is fetched for it, its work, and what of its results travels on
    lane    where all that travels goes, one after the other

A clock goes over the jobs. Whatever may be fetched is sent for, as long as few fetches are under way; then the first
job in the order of the step runs that need not wait. Only if all must wait does the clock wait too. Only jobs close to
the first one left are looked at, so that the order, and with it the memory, stays close to the given one.

All workers follow one agenda, so the seconds must not be what one of them measured.

Source: list scheduling (R. Graham, "Bounds for Certain Multiprocessing Anomalies", 1966), with a lane for exchanges.
"""

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

MOST_FETCHES = 2
"""At most this many fetches that were sent for before their call are under way at once; each holds memory."""


@dataclass(frozen=True, slots=True)
class Job:
    """Which jobs must come before, and the seconds of its fetches, of its arithmetic, and of handing on its results."""

    before: tuple[int, ...]
    fetched: float
    seconds: float
    handed_on: float


@dataclass(frozen=True, slots=True)
class Agenda:
    """The jobs in the order in which they run, and the seconds that all take.

    `early` gives, for a job, the other jobs whose fetches are sent for directly before it.
    """

    order: tuple[int, ...]
    early: Mapping[int, tuple[int, ...]]
    seconds: float


def agenda(jobs: Sequence[Job], window: int) -> Agenda:
    """Return the agenda of jobs; only the `window` jobs from the first one left on are looked at (1: in their order).

    >>> fetch, long, short = Job((), 9, 1, 0), Job((), 0, 5, 0), Job((), 0, 4, 0)
    >>> agenda((fetch, long, short), 1)
    Agenda(order=(0, 1, 2), early={}, seconds=19.0)
    >>> agenda((fetch, long, short), 3)
    Agenda(order=(1, 2, 0), early={1: (0,)}, seconds=10.0)
    """
    clock = _Clock(jobs, [0.0] * len(jobs))
    after: list[list[int]] = [[] for _ in jobs]
    missing = [len(job.before) for job in jobs]
    for at, job in enumerate(jobs):
        for earlier in job.before:
            after[earlier].append(at)
    ready = [at for at, count in enumerate(missing) if count == 0]
    is_run = [False] * len(jobs)
    order: list[int] = []
    early: dict[int, tuple[int, ...]] = {}
    waiting: list[int] = []
    first = 0
    while ready:
        near = [at for at in ready if at < first + window]
        waiting += clock.send_for(near)
        chosen = next((at for at in near if clock.begin(at) <= clock.now), None)
        if chosen is None:
            clock.now = min(clock.begin(at) for at in near)
            continue
        ready.remove(chosen)
        arrived = clock.run(chosen)
        order.append(chosen)
        others = tuple(at for at in waiting if at != chosen)
        if others:
            early[chosen] = others
        waiting.clear()
        is_run[chosen] = True
        while first < len(jobs) and is_run[first]:
            first += 1
        for later in after[chosen]:
            clock.given[later] = max(clock.given[later], arrived)
            missing[later] -= 1
            if missing[later] == 0:
                insort(ready, later)
    return Agenda(tuple(order), early, max(clock.now, clock.lane_free))


@dataclass
class _Clock:
    """The time; when each job has been `given` the results that it needs; and what is under way."""

    jobs: Sequence[Job]
    given: list[float]
    now: float = 0.0
    lane_free: float = 0.0
    fetching: dict[int, float] = field(default_factory=dict[int, float])

    def send_for(self, near: Sequence[int]) -> Iterator[int]:
        """Begin to fetch what jobs need, as long as few fetches are under way, and yield these jobs."""
        for at in near:
            if len(self.fetching) == MOST_FETCHES:
                return
            if self.jobs[at].fetched and at not in self.fetching and self.given[at] <= self.now:
                self.lane_free = max(self.now, self.lane_free) + self.jobs[at].fetched
                self.fetching[at] = self.lane_free
                yield at

    def begin(self, at: int) -> float:
        """Return when a job can run, or be sent for; infinite while only the number of other fetches forbids it."""
        if not self.jobs[at].fetched or at in self.fetching:
            return self.fetching.get(at, self.given[at])
        return self.given[at] if self.given[at] > self.now else inf

    def run(self, at: int) -> float:
        """Run a job, and return when its results have arrived."""
        self.fetching.pop(at, None)
        self.now += self.jobs[at].seconds
        if not self.jobs[at].handed_on:
            return self.now
        self.lane_free = max(self.now, self.lane_free) + self.jobs[at].handed_on
        return self.lane_free
