"""The swapping of Meng et al. as a planner of this package: keep the maps nearest to the loss, swap all others.

Meng, Sun, Yang, Qiu, Gu 2017, "Training deeper models by GPU memory optimization on TensorFlow", ML Systems workshop
at NIPS, http://learningsys.org/nips17/assets/papers/paper_18.pdf.

    which   walk over the maps from the loss back to the input and keep them until they fill the memory threshold; what
            is left is swapped: a map far from the loss rests long, so that its transfers hide
    when    late, but hidden: complete(k) is the time at which op k ends (a critical path; of ops that run one by one,
            their sum), and the trigger of a copy back for op e is the last op k with complete(k) + transfer <= begin(e)

The threshold is the user's. Here it is the largest with which the step fits, or one of a few smaller ones if the step
is quicker with it: room that is left lets copies back begin early. Departures: the passes are told by `phases`; a copy
back for which there is no room at its trigger begins later. The fused operators of the paper are not part of it.
"""

from collections.abc import Sequence
from itertools import chain

from outgrow.analysis.liveness import Gap
from outgrow.plan import Decision
from outgrow.planning.problem import Problem
from outgrow.planning.published.phases import maps, turn_of
from outgrow.planning.published.profile import Profile, captured_profile
from outgrow.planning.published.refusal import refusal
from outgrow.planning.published.triggers import SwapSchedule, fewest_away, latest_trigger, promised_bytes, triggered

_THRESHOLDS = 12


def meng(problem: Problem) -> tuple[Decision, ...]:
    """Return the swaps of Meng et al.

    Raises `Infeasible` if the budget is below the floor, or below what storages that are no maps need.
    """
    profile = captured_profile(problem)
    feature_maps = list(maps(profile, problem.graph, turn_of(problem.graph)).values())
    promised = promised_bytes(profile, chain.from_iterable(feature_maps))
    if int(promised.max()) > problem.budget.capacity_bytes:
        raise refusal(problem, "meng", "it swaps forward results only, for the backward pass", promised, profile.ops)
    fewest = fewest_away(profile, feature_maps, problem.budget.capacity_bytes)
    left = len(feature_maps) - fewest
    counts = [fewest + left * part // _THRESHOLDS for part in range(_THRESHOLDS)]
    schedules = (_schedule(problem, profile, feature_maps[:count]) for count in counts)
    return min(schedules, key=lambda found: found.seconds).swaps


def _schedule(problem: Problem, profile: Profile, swapped: Sequence[Sequence[Gap]]) -> SwapSchedule:
    link, elapsed = problem.machine.link, profile.elapsed
    triggers = {
        gap: latest_trigger(profile, gap, float(elapsed[gap.end]) - link.in_seconds(gap.size_bytes))
        for gap in chain.from_iterable(swapped)
    }
    return triggered(problem, profile, triggers)
