"""Capuchin: swap what rests long enough, then swap or recompute what costs less, as a planner of this package.

Peng, Shi, Dai, Jin, Ma, Xiong, Yang, Qian 2020, "Capuchin: Tensor-based GPU memory management for deep learning",
ASPLOS, https://doi.org/10.1145/3373376.3378505. From the trace of accesses of one measured step, with their times:

    candidates   pairs of accesses of one tensor that have a part of the peak period between them: memory is over
                 capacity there
    free time    FT = (back_access - swap_in) - (evicted_access + swap_out): how long the tensor would be away
    MSPS         memory saved per second of recomputation

    1. swap candidates, longest free time first, as long as a swap costs nothing and memory is over capacity
    2. then compare the swap with the longest free time and the recomputation with the highest MSPS, take the one with
       less overhead, and bring the seconds of all other recomputations up to date: one whose source has gone must
       rebuild that as well, and a source of what is recomputed already is rebuilt once more for each
    3. a copy back is triggered by the latest access before the begin of its slot on the link (`lanes`), one transfer
       at a time in each direction; while an access still waits for its copy, the copy is triggered earlier by 5 % of
       its seconds, and the step is run again

Departures: what is needed is known for each op, so a choice stops where no op is over capacity any more, not at a sum
of bytes; overheads are compared for each byte, since the two tensors differ in size; runs to learn from are runs of
the clock of `triggers`, whose check for room stands for the rule that no trigger lies in the peak period; after the
recomputations are applied, the swaps are chosen anew by the same rules on the graph as it is then; where recomputation
needs more room than there is, everything is swapped, which fits whenever the budget is not below the floor.
"""

from outgrow.analysis.liveness import Gap
from outgrow.ir.graph import Graph
from outgrow.plan import Decision
from outgrow.planning.problem import Problem
from outgrow.planning.published.lanes import Booking, Lanes
from outgrow.planning.published.lineage import rebuild_all
from outgrow.planning.published.profile import Profile, captured_profile, profile_of
from outgrow.planning.published.regeneration import Regeneration
from outgrow.planning.published.triggers import SwapSchedule, latest_trigger, triggered

_RUNS = 50
_EARLIER = 0.05


def capuchin(problem: Problem) -> tuple[Decision, ...]:
    """Return the recomputations and swaps of Capuchin.

    Raises `Infeasible` if the budget is below the floor.
    """
    profile = captured_profile(problem)
    regeneration = _chosen_to_recompute(problem, profile)
    graph, decisions = rebuild_all(problem.graph, regeneration.rebuilt())
    found = _swapped(problem, graph)
    if found is None:
        decisions, found = (), _swapped(problem, problem.graph)
    assert found is not None, "a budget at or above the floor has a plan: everything unused can be away"
    return (*decisions, *found.swaps)


class _Ledger:
    """What is over capacity still, and what has been swapped."""

    def __init__(self, problem: Problem, profile: Profile) -> None:
        self.excess = profile.live - problem.budget.capacity_bytes
        self.lanes = Lanes(profile, problem.machine.link)
        self.booked: dict[Gap, Booking] = {}

    def needs(self, gap: Gap) -> bool:
        """Whether memory is over capacity somewhere within the gap."""
        return bool((self.excess[gap.begin + 1 : gap.end] > 0).any())

    def free(self, gap: Gap) -> None:
        self.excess[gap.begin + 1 : gap.end] -= gap.size_bytes

    def swap(self, gap: Gap) -> None:
        self.booked[gap] = self.lanes.book(gap)
        self.free(gap)


def _swap_for_nothing(ledger: _Ledger, profile: Profile) -> list[Gap]:
    """Part 1; returns the candidates that are left, longest free time first."""
    left: list[Gap] = []
    for gap in sorted(profile.gaps, key=lambda gap: (-ledger.lanes.free_time(gap), gap.begin, gap.end, gap.storage)):
        if ledger.needs(gap):
            if ledger.lanes.offer(gap).late_seconds > 0:
                left.append(gap)
            else:
                ledger.swap(gap)
    return left


def _chosen_to_recompute(problem: Problem, profile: Profile) -> Regeneration:
    """Parts 1 and 2 on the captured graph."""
    ledger = _Ledger(problem, profile)
    left = _swap_for_nothing(ledger, profile)
    regeneration = Regeneration(problem)
    while left := [gap for gap in left if ledger.needs(gap)]:
        swap_seconds = ledger.lanes.offer(left[0]).late_seconds / left[0].size_bytes
        best = regeneration.most_saved_per_second(left)
        if best is None or swap_seconds <= regeneration.seconds(best) / best.size_bytes:
            best = left[0]
            ledger.swap(best)
        else:
            regeneration.choose(best)
            ledger.free(best)
        left.remove(best)
    return regeneration


def _swapped(problem: Problem, graph: Graph) -> SwapSchedule | None:
    """Parts 1 to 3 without recomputation, on a graph with what is recomputed; None if the step does not fit."""
    profile = profile_of(problem, graph)
    ledger = _Ledger(problem, profile)
    for gap in _swap_for_nothing(ledger, profile):
        if ledger.needs(gap):
            ledger.swap(gap)
    if bool((ledger.excess > 0).any()):
        return None
    return _learned(problem, profile, ledger.booked)


def _learned(problem: Problem, profile: Profile, booked: dict[Gap, Booking]) -> SwapSchedule:
    """The quickest of the runs, each with earlier triggers for what came back late in the run before."""
    begins = {gap: booking.back_begin for gap, booking in booked.items()}
    best = _run(problem, profile, begins)
    latest = best
    for _ in range(_RUNS - 1):
        late = [gap for gap, stall in latest.stalls if stall > 0]
        if not late:
            break
        for gap in late:
            begins[gap] -= _EARLIER * booked[gap].back_seconds
        latest = _run(problem, profile, begins)
        best = min(best, latest, key=lambda run: run.seconds)
    return best


def _run(problem: Problem, profile: Profile, begins: dict[Gap, float]) -> SwapSchedule:
    triggers = {gap: latest_trigger(profile, gap, begin) for gap, begin in begins.items()}
    return triggered(problem, profile, triggers)
