"""The schedule of SERENITY: dynamic programming over partial orders, cut at separators, under a soft budget.

Ahn, Lee, Lin, Cheng, Hou and Esmaeilzadeh 2020, "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural
Networks for Edge Devices", https://arxiv.org/abs/2003.02369.

    signature     the zero-indegree frontier of a partial schedule: the ops that wait for nothing that has not run.
                  Partial schedules of one signature have the same rest before them and hold the same bytes, so only
                  the one with the lowest peak is kept: at most 2^n signatures instead of n! schedules
    level i       signature -> (peak, bytes held, schedule) of i ops
    divide        at ops that all others precede or follow; the parts are scheduled one by one and joined
    soft budget   tau: partial schedules with a higher peak are dropped. tau begins at the peak of Kahn's order; a
                  round that takes too long ("timeout") halves it, a round without a schedule ("no solution") sets it
                  halfway back to the last that took too long; any schedule found is a best one, since every
                  budget at or above the best peak keeps the best schedule

Departures: the paper orders inference, where every op has one output that dies with its last reader. Here storages
die with the last op that touches them, ops wait for each other by all conflicts over storages, and workspace counts.
tau begins at the peak of the captured order where that is lower than Kahn's. "Too long" is a number of expanded partial
schedules instead of seconds, so that the result does not depend on the machine. tau moves between the lowest budget
known to take too long and the highest known to have no schedule, and after `_ROUNDS` rounds a beam search replaces the
programme. Of the rewriting of concatenations nothing is here: it changes sums, hence bits. The first op stays first
(see `planning.order.moves`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from outgrow.plan import Move
from outgrow.planning.order.jobs import Jobs, jobs_of, live_bytes_in, segments, window
from outgrow.planning.order.unavoidable import unavoidable_bytes
from outgrow.planning.problem import Problem
from outgrow.planning.published.orders import Schedule, beam, moves_within, unproved

_ROUNDS = 8
_EXPANSIONS = 200_000


class _End(Enum):
    """How a round of the programme ends, if not with a schedule."""

    NO_SOLUTION = "no solution"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class _Partial:
    """A partial schedule: the jobs that have run, as a bit set and as a chain of links to the one before."""

    done: int
    held: int
    peak: int
    job: int
    before: "_Partial | None"


def serenity(problem: Problem) -> tuple[Move, ...]:
    """Return the moves into SERENITY's order.

    Raises `Infeasible` if the least peak that was found is above the budget: the order is all that is chosen here.
    """
    jobs = jobs_of(problem.graph, problem.workspace, first_stays=True)
    return moves_within(problem, "SERENITY", problem.graph, jobs, serenity_schedule(jobs))


def serenity_schedule(jobs: Jobs) -> Schedule:
    """Return the schedule of all jobs: segment by segment, joined."""
    order = list(range(len(jobs)))
    is_optimal = True
    for part in segments(jobs):
        inside = window(jobs, order, part.start, part.stop)
        schedule = _scheduled(inside)
        order[part.start : part.stop] = [part.start + job for job in schedule.order]
        is_optimal = is_optimal and schedule.is_optimal
    peak = max(live_bytes_in(jobs, order), default=0)
    if is_optimal or peak == unavoidable_bytes(jobs):
        return Schedule(tuple(order), peak, is_optimal=True)
    shortfall = "too many partial schedules to compare all; in part the order of a beam search"
    return Schedule(tuple(order), peak, is_optimal=False, shortfall=shortfall)


def _scheduled(jobs: Jobs) -> Schedule:
    """Schedule one segment with the adaptive soft budget."""
    starts = (unproved(jobs, order) for order in (_kahn(jobs), range(len(jobs))))
    known = min(starts, key=lambda start: start.peak_bytes)
    none_below = unavoidable_bytes(jobs)
    too_long_from = known.peak_bytes + 1
    tau = known.peak_bytes
    if tau == none_below:
        return Schedule(known.order, known.peak_bytes, is_optimal=True)
    for _ in range(_ROUNDS):
        found = _programme(jobs, tau)
        if isinstance(found, Schedule):
            return found
        if found is _End.TIMEOUT:
            too_long_from = tau
            tau = max(none_below, tau // 2)
        else:
            none_below = tau + 1
        if none_below >= too_long_from:
            break
        if tau < none_below or tau >= too_long_from:
            tau = (none_below + too_long_from) // 2
    return replace(beam(jobs, known, by_peak=True), is_optimal=False)  # the method proves nothing by a beam


def _programme(jobs: Jobs, tau: int) -> Schedule | _End:
    """Run the dynamic programme under the budget `tau`: one level for each job."""
    frontier = sum(1 << job for job, waits in enumerate(jobs.predecessors) if not waits)
    level: dict[int, _Partial] = {frontier: _Partial(0, jobs.start_bytes, 0, -1, None)}
    waits = [sum(1 << other for other in earlier) for earlier in jobs.predecessors]
    touchers = [0] * len(jobs.sizes)
    for job, storages in enumerate(jobs.touches):
        for storage in storages:
            touchers[storage] |= 1 << job
    expanded = 0
    for _ in range(len(jobs)):
        following: dict[int, _Partial] = {}
        for signature, partial in level.items():
            for job in _members(signature):
                expanded += 1
                now = partial.held + jobs.born_bytes[job]
                peak = max(partial.peak, now + jobs.workspace_bytes[job])
                if peak > tau:
                    continue
                done = partial.done | 1 << job
                now -= sum(jobs.sizes[one] for one in jobs.touches[job] if not touchers[one] & ~done)
                opened = sum(1 << later for later in jobs.successors[job] if not waits[later] & ~done)
                reached = signature & ~(1 << job) | opened
                if reached not in following or peak < following[reached].peak:
                    following[reached] = _Partial(done, now, peak, job, partial)
        if not following:
            return _End.NO_SOLUTION
        if expanded > _EXPANSIONS:
            return _End.TIMEOUT
        level = following
    (last,) = level.values()
    return Schedule(tuple(reversed(list(_jobs_of(last)))), last.peak, is_optimal=True)


def _members(bits: int) -> Iterator[int]:
    """The numbers in a bit set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _jobs_of(partial: _Partial) -> Iterator[int]:
    """The jobs of a partial schedule, the last one first."""
    while partial.before is not None:
        yield partial.job
        partial = partial.before


def _kahn(jobs: Jobs) -> tuple[int, ...]:
    """Kahn's order: first ready, first run (Kahn 1962)."""
    waits = [len(earlier) for earlier in jobs.predecessors]
    order = [job for job, count in enumerate(waits) if not count]
    for job in order:
        for later in jobs.successors[job]:
            waits[later] -= 1
            if not waits[later]:
                order.append(later)
    return tuple(order)
