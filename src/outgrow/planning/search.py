"""The joint choice: order, re-use, recomputation and swapping, decided by what the schedule costs.

    1. updates move forward, dying operands are written over (`free`): these free memory at no cost
    2. if the step fits now, nothing is moved
    3. a policy says for every rest of a storage whether its bytes are kept or built again (`sequence`); for a policy,
       the sequence of ops, its live bytes, the gaps to swap and the transfers in time follow, and so its seconds
    4. the scan: policies that build again whatever costs less than some seconds a byte, for many such prices; then
       each kind of rest in turn is given the choice that suits it best
    5. the search: from there, and from keeping everything, short runs of simulated annealing over the changes in
       `changes`, and a long one from the best of them: a change stays if the step is quicker, or hardly slower while
       the search is still warm

The result is deterministic: the search ends after a number of trials that depends on the graph alone, and its random
numbers come from fixed seeds.

After Kirkpatrick, Gelatt, Vecchi 1983, "Optimization by Simulated Annealing", https://doi.org/10.1126/science.220.4598.671.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from outgrow.analysis.liveness import live_bytes
from outgrow.ir.graph import Graph
from outgrow.plan import Decision
from outgrow.planning.changes import CHANGES
from outgrow.planning.floor import require_feasible
from outgrow.planning.problem import Problem
from outgrow.planning.recompute import named
from outgrow.planning.residence import Residence, residence_of
from outgrow.planning.sequence import DISCARD, KEEP, REBUILD, Sequence, sequence_of
from outgrow.planning.space import Policy, Space, space_of
from outgrow.planning.swap import swaps_of
from outgrow.planning.transfers import Transfers, farthest, transfers, widest

_HEADROOMS = (0.0, 0.04, 0.08, 0.15, 0.25, 0.4)
_LEADS = (0.02, 0.1, 0.5)
_PRICES = 24
_WORK = 16_000_000
"""Ops walked over in one search: what some seconds allow."""
_MOST_TRIALS, _FEWEST_TRIALS, _TRIALS_A_REST = 24_000, 120, 50
_WARM, _LUKEWARM, _COLD = 1e-2, 4e-3, 3e-5
"""Temperatures, as shares of the step: at the beginning of a short run, of the long one, and at the end of each."""
_SMALL = 4_000
"""Ops up to which every way of choosing gaps is tried."""
_ENOUGH = 1e-4
"""A stall of less than this share of the step is not worth a search."""


@dataclass(frozen=True, slots=True)
class _Habits:
    """How gaps are chosen: the share of the capacity left free, the rule, and how early copies may come back."""

    headroom: float = 0.0
    is_widest: bool = False
    lead: float = 0.1


@dataclass(frozen=True)
class _Trial:
    """A policy, the habits beside it, and what they cost."""

    policy: Policy
    habits: _Habits
    seconds: float
    excess_bytes: int = 0

    def beats(self, other: "_Trial", warmth: float = 0.0) -> bool:
        """Whether this one is quicker, or nearer to the capacity where neither keeps it."""
        if np.isfinite(self.seconds) or np.isfinite(other.seconds):
            return self.seconds < other.seconds * (1 + warmth)
        return self.excess_bytes < other.excess_bytes


def search(problem: Problem, graph: Graph, free: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """Return the decisions of the joint search; none where the captured step fits.

    `graph` is the captured one after the rewrites that are free, and `free` are those. Raises `Infeasible` if the
    budget is below the floor.
    """
    if max(live_bytes(problem.graph, problem.workspace), default=0) <= problem.budget.capacity_bytes:
        return ()
    require_feasible(problem, graph)
    space = space_of(problem, graph)
    best = _improved(space, _scanned(space))
    assert np.isfinite(best.seconds), "a budget at or above the floor has a plan: everything unused can be away"
    return (*free, *_decisions(space, best))


# What a policy costs ---------------------------------------------------------------------------------------------


def _scheduled(space: Space, policy: Policy, habits: _Habits) -> tuple[Sequence, Residence, Transfers] | None:
    """Return the schedule that follows from a policy; None where a storage cannot be built again."""
    sequence = sequence_of(space.tables, policy)
    if sequence.culprit >= 0:
        return None
    seconds, live, gaps = residence = residence_of(space.tables, sequence)
    capacity, link = space.problem.budget.capacity_bytes, space.problem.machine.link
    target = int(capacity * (1 - habits.headroom))
    if habits.is_widest:
        chosen = widest(live, seconds, gaps.begin, gaps.end, gaps.size, target)
    else:
        chosen = farthest(live, gaps.begin, gaps.end, gaps.size, target)
    lead = habits.lead * float(seconds.sum())
    found = transfers(seconds, live, gaps, chosen, capacity, link, lead, space.problem.piece_bytes)
    return sequence, residence, found


def _tried(space: Space, policy: Policy, habits: _Habits) -> _Trial:
    found = _scheduled(space, policy, habits)
    if found is None:
        return _Trial(policy, habits, float("inf"), 1 << 62)
    _, _, schedule = found
    return _Trial(policy, habits, float(schedule.seconds), int(schedule.excess_bytes))


def _decisions(space: Space, trial: _Trial) -> tuple[Decision, ...]:
    found = _scheduled(space, trial.policy, trial.habits)
    assert found is not None, "a trial that was timed has a schedule"
    sequence, residence, schedule = found
    names = named(space.tables, sequence)
    storages = [names.instances[int(instance)] for instance in residence.gaps.instance]
    return (*names.decisions, *swaps_of(names.ops, storages, residence.gaps, schedule))


# The scan --------------------------------------------------------------------------------------------------------


def _scanned(space: Space) -> _Trial:
    """Return the best of the policies that build again what is cheap, at many prices, improved kind by kind."""
    best = _tried(space, space.start, _Habits())
    for policy in _cheap(space):
        for habits in (_Habits(), _Habits(0.08), _Habits(0.25, lead=0.5)):
            trial = _tried(space, policy, habits)
            if trial.beats(best):
                best = trial
    return _settled(space, _kind_by_kind(space, _settled(space, best)))


def _cheap(space: Space) -> Iterator[Policy]:
    inner = space.rests[space.start[space.rests] == KEEP]
    if not len(inner):
        return
    prices = space.price[inner]
    for price in np.unique(np.quantile(prices, np.linspace(0, 1, _PRICES), method="lower")):
        for choice in (DISCARD, REBUILD):
            policy = space.start.copy()
            policy[inner[prices <= price]] = choice
            yield policy


def _kind_by_kind(space: Space, best: _Trial) -> _Trial:
    """Give each kind of rest the choice that suits it best, as the others stand; as often as that pays."""
    before = float("inf")
    while len(space.kinds) * len(space.tables.op_seconds) < _WORK // 16 and best.seconds < before * (1 - 1e-3):
        before = best.seconds
        for members in space.kinds:
            for choice in (KEEP, REBUILD, DISCARD):
                policy = best.policy.copy()
                policy[members] = choice
                trial = _tried(space, policy, best.habits)
                if trial.beats(best):
                    best = trial
    return best


def _settled(space: Space, trial: _Trial) -> _Trial:
    """Return the policy under the habits that suit it best; the rule that looks at every gap is for small steps."""
    rules = (False, True) if len(space.tables.op_seconds) <= _SMALL else (False,)
    for headroom in _HEADROOMS:
        for lead in _LEADS:
            for is_widest in rules:
                other = _tried(space, trial.policy, _Habits(headroom, is_widest, lead))
                if other.beats(trial):
                    trial = other
    return trial


# The search ------------------------------------------------------------------------------------------------------


def _improved(space: Space, start: _Trial) -> _Trial:
    """Return the best policy that the search finds from `start` on."""
    if not len(space.rests) or _is_enough(space, start):
        return start
    affordable = min(_MOST_TRIALS, _WORK // len(space.tables.op_seconds), _TRIALS_A_REST * len(space.rests))
    trials = max(_FEWEST_TRIALS, affordable)
    best, plain = start, _settled(space, _tried(space, space.start, _Habits()))
    origins = (start, start, plain if np.isfinite(plain.seconds) else start)
    for number, origin in enumerate(origins):
        share = number / (2 * len(origins))
        found = _annealed(space, origin, number, trials // (2 * len(origins)), _WARM, share)
        best = found if found.beats(best) else best
    return _settled(space, _annealed(space, best, len(origins), trials // 2, _LUKEWARM, 0.5))


def _annealed(space: Space, start: _Trial, seed: int, trials: int, warm: float, done: float) -> _Trial:
    """Return the best of `trials` policies in a row, each a change of the last one that was taken."""
    random = np.random.default_rng(seed)
    now = best = start
    for number in range(trials):
        if _is_enough(space, best):
            break
        if number % 64 == 0:
            space.problem.progress("search", done + (0.5 if done >= 0.5 else 1 / 6) * number / trials)
        temperature = warm * (_COLD / warm) ** (number / trials)
        which = int(random.integers(len(CHANGES) + 1))
        if which == len(CHANGES):
            trial = _tried(space, now.policy, _other_habits(now.habits, random))
        else:
            policy = CHANGES[which](space, now.policy, random)
            if policy is None:
                continue
            trial = _tried(space, policy, now.habits)
        if trial.beats(now, temperature * random.standard_exponential()):
            now = trial
        if trial.beats(best):
            best = trial
    return best


def _other_habits(habits: _Habits, random: np.random.Generator) -> _Habits:
    if random.integers(2):
        return replace(habits, headroom=_HEADROOMS[int(random.integers(len(_HEADROOMS)))])
    return replace(habits, lead=_LEADS[int(random.integers(len(_LEADS)))])


def _is_enough(space: Space, trial: _Trial) -> bool:
    return trial.seconds <= space.arithmetic_seconds * (1 + _ENOUGH)
