"""TFLMS v2: swap every tensor between ops that are far apart, with knobs tuned by a simulator of memory.

Le, Imai, Negishi, Kawachiya 2019, "Automatic GPU memory management for large neural models in TensorFlow", ISMM,
https://doi.org/10.1145/3315573.3329984, and its published code. distance(a, b) = level(b) - level(a), see `levels`.

    swapout_threshold   an op reads a tensor from the next tier if it is more than this distance from its producer
    swapin_groupby      far readers whose levels differ by at most this share one copy back
    swapin_ahead        the copy back is triggered by an op that the reader waits for, this many levels and one before
                        it; if there is none, up to ten levels earlier; else the reader itself asks for it
    sync_mode           1: what follows the producer waits for the copy out; 2: copies back are made when they are
                        needed; 3: both; 0: neither

The simulator counts bytes at each op and knows no time: a copy out holds its source for one op more (in sync_mode 1
and 3 for none), a copy back holds its bytes from its trigger on. The tuning, in the order of the code:

    1. with ahead 1 and groupby 0, the first sync_mode in which threshold 1 fits; in it the largest threshold that fits
    2. with it, the largest ahead that fits
    3. with both, the largest groupby that fits

Departures: the ops run in the captured order, so memory is counted in it, while distances are those of levels; the
optimizer waits for the backward pass, as `levels` says; the budget is not multiplied by 0.9, since the process's
overhead is deducted from it before; tensors of any rank move if they are large enough. The plan that runs has a clock
(`triggers`), waits for a copy out only where memory asks for it, and puts a copy back off rather than fail: all in
favour of the method.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from outgrow.analysis.liveness import Gap, write_steps
from outgrow.ir.graph import Graph
from outgrow.plan import Decision
from outgrow.planning.arrays import Integers
from outgrow.planning.problem import Problem
from outgrow.planning.published.levels import Levels, levels_of
from outgrow.planning.published.profile import Profile, captured_profile
from outgrow.planning.published.refusal import refusal
from outgrow.planning.published.triggers import triggered

_LEVELS_BACK = 10


@dataclass(frozen=True, slots=True)
class Knobs:
    """The options of TFLMS v2, by their names there."""

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    sync_mode: int


@dataclass(frozen=True)
class _Distances:
    """The gaps of a graph, the levels of its ops, and of each gap that of the op that made what rests (None: no op)."""

    profile: Profile
    levels: Levels
    producer_level: tuple[int | None, ...]


def tflms_v2(problem: Problem) -> tuple[Decision, ...]:
    """Return the swaps of TFLMS v2.

    Raises `Infeasible` if the budget is below the floor, or if not even threshold 1 fits.
    """
    profile = captured_profile(problem)
    distances = _distances(problem.graph, profile)
    knobs = _tuned(problem, distances)
    return triggered(problem, profile, _triggers(distances, knobs)).swaps


def _distances(graph: Graph, profile: Profile) -> _Distances:
    levels = levels_of(graph)
    writes = write_steps(graph)
    producers: list[int | None] = []
    for gap in profile.gaps:
        steps = writes.get(gap.storage, [])
        before = bisect_right(steps, gap.begin)
        producers.append(levels.of[steps[before - 1]] if before else None)
    return _Distances(profile, levels, tuple(producers))


def _tuned(problem: Problem, distances: _Distances) -> Knobs:
    """Steps 1 to 3 of the tuning."""
    capacity, count = problem.budget.capacity_bytes, len(distances.levels)

    def fits(knobs: Knobs) -> bool:
        return int(_simulated(distances, knobs).max()) <= capacity

    start = [Knobs(1, 1, 0, mode) for mode in range(4)]
    knobs = next((knobs for knobs in start if fits(knobs)), None)
    if knobs is None:
        limits = "it swaps only between ops that are more than one level apart"
        needed = _simulated(distances, start[-1])
        raise refusal(problem, "tflms_v2", limits, needed, distances.profile.ops)
    tuned = knobs
    threshold = _largest(lambda value: fits(replace(tuned, swapout_threshold=value)), 1, count)
    tuned = replace(tuned, swapout_threshold=threshold)
    ahead = _largest(lambda value: fits(replace(tuned, swapin_ahead=value)), 1, count)
    tuned = replace(tuned, swapin_ahead=ahead)
    groupby = _largest(lambda value: fits(replace(tuned, swapin_groupby=value)), 0, count)
    return replace(tuned, swapin_groupby=groupby)


def _largest(fits: Callable[[int], bool], good: int, limit: int) -> int:
    """The largest value up to `limit` that fits, by bisection from `good`, which does; the limit itself comes first."""
    if limit > good and fits(limit):
        return limit
    while limit - good > 1:
        middle = (good + limit) // 2
        if fits(middle):
            good = middle
        else:
            limit = middle
    return good


def _simulated(distances: _Distances, knobs: Knobs) -> Integers:
    """The bytes at each op that the simulator of the method counts."""
    held = distances.profile.live.copy()
    for gap, trigger in _triggers(distances, knobs).items():
        delay = 1 if gap.dirty and knobs.sync_mode in {0, 2} else 0
        held[gap.begin + 1 + delay : trigger] -= gap.size_bytes
    return held


def _triggers(distances: _Distances, knobs: Knobs) -> dict[Gap, int]:
    """The gaps that are swapped under these knobs, and the step before which each copy back may begin."""
    found: dict[Gap, int] = {}
    level = distances.levels.of
    for gap, producer in zip(distances.profile.gaps, distances.producer_level, strict=True):
        if producer is None or level[gap.end] - producer <= knobs.swapout_threshold:
            continue
        was_far = level[gap.begin] - producer > knobs.swapout_threshold
        if was_far and level[gap.end] - level[gap.begin] <= knobs.swapin_groupby:
            continue
        found[gap] = gap.end if knobs.sync_mode >= 2 else _trigger(distances.levels, gap, producer, knobs.swapin_ahead)
    return found


def _trigger(levels: Levels, gap: Gap, producer_level: int, ahead: int) -> int:
    first = levels.of[gap.end] - ahead - 1
    for level in range(first, max(first - _LEVELS_BACK, producer_level), -1):
        control = levels.latest_ancestor(gap.end, level)
        if control is not None:
            return max(control, gap.begin) + 1
    return gap.end
