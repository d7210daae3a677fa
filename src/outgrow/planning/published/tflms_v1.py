"""The first TFLMS: swap what goes from the forward to the backward pass, as a planner of this package.

Le, Imai, Negishi, Kawachiya 2018, "TFLMS: Large model support in TensorFlow by graph rewriting",
https://arxiv.org/abs/1807.02037, and the options of its published code:

    n_tensors          how many maps are swapped, from the first of the forward pass on; -1: all
    lb                 a copy back is triggered lb ops before the op that needs it
    branch_threshold   a map is also swapped between two uses of the forward pass that are more than this many ops
                       apart (swap_branches, for networks like the U-Net); off unless the step does not fit without

A map goes out once, and comes back for each op of the backward pass that needs it (fuse_swapins off). The options are
tuned as the authors advise: all maps and lb = 1 first, then as few maps as still fit, then a larger lb if that helps.
They watch real runs for this; here the clock of `triggers` is watched.

Departures: levels of the graph are positions in the captured order, in which ops run one by one, so every earlier op
may be the trigger; the two passes are told by `phases`, not by names of scopes; no types of operators are excluded; a
copy out begins after the last use before the gap instead of after the producer; branch_threshold is searched for, by
halves; a copy back that finds no room begins later instead of failing.
"""

from collections.abc import Sequence
from itertools import chain

from outgrow.analysis.liveness import Gap
from outgrow.plan import Decision
from outgrow.planning.problem import Problem
from outgrow.planning.published.phases import maps, turn_of
from outgrow.planning.published.profile import Profile, captured_profile
from outgrow.planning.published.refusal import refusal
from outgrow.planning.published.triggers import SwapSchedule, fewest_away, promised_bytes, triggered


def tflms_v1(problem: Problem) -> tuple[Decision, ...]:
    """Return the swaps of the first TFLMS.

    Raises `Infeasible` if the budget is below the floor, or below what storages that are no maps need.
    """
    profile = captured_profile(problem)
    tensors = _tensors(problem, profile)
    swapped = tuple(chain.from_iterable(tensors[: fewest_away(profile, tensors, problem.budget.capacity_bytes)]))
    schedules = (_with_lb(problem, profile, swapped, 1 << power) for power in range(len(profile.ops).bit_length()))
    return min(schedules, key=lambda found: found.seconds).swaps


def _tensors(problem: Problem, profile: Profile) -> Sequence[Sequence[Gap]]:
    """The gaps of each map, with those between uses of the forward pass that are needed to fit."""
    turn = turn_of(problem.graph)
    crossing = maps(profile, problem.graph, turn)
    threshold = turn
    while True:
        branches: dict[str, list[Gap]] = {name: [] for name in crossing}
        for gap in profile.gaps:
            if gap.storage in crossing and gap.end < turn and gap.end - gap.begin > threshold:
                branches[gap.storage].append(gap)
        tensors = [(*branches[name], *gaps) for name, gaps in crossing.items()]
        promised = promised_bytes(profile, chain.from_iterable(tensors))
        if int(promised.max()) <= problem.budget.capacity_bytes:
            return tensors
        if threshold <= 1:
            raise refusal(problem, "tflms_v1", "it swaps forward results only", promised, profile.ops)
        threshold //= 2


def _with_lb(problem: Problem, profile: Profile, gaps: Sequence[Gap], lb: int) -> SwapSchedule:
    return triggered(problem, profile, {gap: max(gap.begin + 1, gap.end - lb) for gap in gaps})
