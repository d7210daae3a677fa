"""What does a policy cost, and which policies near it cost less? Compiled, since the search asks thousands of times.

A *trial* is a policy with the habits by which gaps are chosen: the share of the capacity that is left free, the rule,
and how early copies may come back, as a share of the step. From a policy follow the ops that run (`sequence`), what
they hold (`residence`), the gaps to swap and the transfers in time (`transfers`), and so its seconds; where the
capacity is exceeded, they are infinite, and the trial says by how many bytes.

Simulated annealing goes from trial to trial by `changes`: a change is taken if the step is quicker, or hardly slower
while the search is still warm.

After Kirkpatrick, Gelatt, Vecchi 1983, "Optimization by Simulated Annealing", https://doi.org/10.1126/science.220.4598.671.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from outgrow.planning.arrays import Integers, Reals
from outgrow.planning.compiled import compiled
from outgrow.planning.search.changes import Alike, change
from outgrow.planning.search.choice import FARTHEST, PARTLY, SwapRule, choose
from outgrow.planning.search.residence import Gaps, PlainResidence, residence, seconds_of
from outgrow.planning.search.sequence import OpSequence, Policy, expanded
from outgrow.planning.search.space import Space
from outgrow.planning.search.tables import Tables
from outgrow.planning.search.transfers import PlainTransfers, Rates, rates, schedule

HEADROOMS = (0.0, 0.04, 0.08, 0.15, 0.25, 0.4)
LEADS = (0.02, 0.1, 0.5)
_NOWHERE = 1 << 62


class Conditions(NamedTuple):
    """What does not change from trial to trial: the step, what the link does, and the bytes that there are."""

    tables: Tables
    rates: Rates
    capacity_bytes: int
    piece_bytes: int
    part_bytes: int


class Cooling(NamedTuple):
    """How a run of `trials` cools, from `warm` to `cold`, shares of the step; `enough` seconds of a step end it."""

    trials: int
    warm: float
    cold: float
    enough: float


class Trial(NamedTuple):
    """A policy, the habits beside it, and what they cost."""

    policy: Policy
    rule: SwapRule
    seconds: float
    excess_bytes: int


def conditions_of(space: Space) -> Conditions:
    """Return the conditions of trials in a space."""
    problem = space.problem
    return Conditions(
        space.tables,
        rates(problem.machine.link),
        problem.budget.capacity_bytes,
        problem.piece_bytes,
        problem.part_bytes,
    )


def tried(conditions: Conditions, policy: Policy, rule: SwapRule) -> Trial:
    """Return the trial of a policy under a rule."""
    return best_of(conditions, policy, (rule,), Trial(policy, rule, np.inf, _NOWHERE))


def best_of(conditions: Conditions, policy: Policy, rules: Sequence[SwapRule], best: Trial) -> Trial:
    """Return the best of the trials of a policy under some rules; `best`, unless one beats it."""
    return _trial(*_best_plainly(conditions, policy, np.array(rules, dtype=np.float64), best))


def annealed(
    conditions: Conditions, alike: Alike, now: Trial, best: Trial, random: np.random.Generator, cooling: Cooling,
    begin: int, end: int,
) -> tuple[Trial, Trial]:  # fmt: skip
    """Make changes `begin` to `end` of a run; return where it stands then, and the best trial so far."""
    last, first = _annealed_plainly(conditions, alike, now, best, random, cooling, begin, end)
    return _trial(*last), _trial(*first)


_Plain: TypeAlias = tuple[Policy, tuple[int, float, float], float, int]
"""The fields of a `Trial`. What compiled code hands to Python is made of plain tuples and arrays: numba makes a named
tuple by calling Python, where Ctrl-C may strike, and does not look whether it did."""


def _trial(policy: Policy, rule: tuple[int, float, float], seconds: float, excess_bytes: int) -> Trial:
    return Trial(policy, SwapRule(*rule), seconds, excess_bytes)


@compiled
def _plain(trial: Trial) -> _Plain:
    rule = trial.rule
    return trial.policy, (rule.way, rule.headroom, rule.lead), trial.seconds, trial.excess_bytes


@compiled
def _best_plainly(conditions: Conditions, policy: Policy, rules: Reals, best: Trial) -> _Plain:
    """The fields of the best trial; what a policy holds is the same under every rule, of which each row is one.

    Rules that differ in nothing but when copies come back choose the same gaps.
    """
    sequence = OpSequence(*expanded(conditions.tables, policy))
    if sequence.culprit >= 0 or seconds_of(conditions.tables, sequence).sum() > best.seconds:
        return _plain(best)
    held = residence(conditions.tables, sequence, policy)
    chosen = np.empty((len(rules), len(held[2][0])), np.int64)
    for at in range(len(rules)):
        rule = SwapRule(int(rules[at, 0]), rules[at, 1], rules[at, 2])
        same = 0
        while rules[same, 0] != rules[at, 0] or rules[same, 1] != rules[at, 1]:
            same += 1
        if same == at:
            chosen[at] = _chosen(conditions, held, rule)
        found = _moved(conditions, held, chosen[same], rule, best.seconds)
        trial = Trial(policy, rule, found[0], found[1])
        if beats(trial, best, 0.0):
            best = trial
    return _plain(best)


@compiled
def _tried(conditions: Conditions, policy: Policy, rule: SwapRule, limit: float) -> Trial:
    """A trial; one that takes more seconds than `limit` is given up as soon as that is seen, as if it never ended."""
    sequence = OpSequence(*expanded(conditions.tables, policy))
    if sequence.culprit >= 0:
        return Trial(policy, rule, np.inf, _NOWHERE)
    if seconds_of(conditions.tables, sequence).sum() > limit:
        return Trial(policy, rule, np.inf, 0)
    _, found = scheduled(conditions, sequence, policy, rule, limit)
    return Trial(policy, rule, found[0], found[1])


@compiled
def scheduled(
    conditions: Conditions, sequence: OpSequence, policy: Policy, rule: SwapRule, limit: float = np.inf
) -> tuple[PlainResidence, PlainTransfers]:
    """What a sequence holds under a policy, and the transfers of the gaps that a rule chooses.

    Returns the fields of `Residence` and those of `Transfers`, whose seconds are infinite if they are beyond `limit`.
    """
    held = residence(conditions.tables, sequence, policy)
    return held, _moved(conditions, held, _chosen(conditions, held, rule), rule, limit)


@compiled
def _chosen(conditions: Conditions, held: PlainResidence, rule: SwapRule) -> Integers:
    """How many bytes of each gap are swapped by a rule."""
    seconds, live, fields, _ = held
    return choose(live, seconds, Gaps(*fields), conditions.capacity_bytes, rule, conditions.part_bytes)


@compiled
def _moved(
    conditions: Conditions, held: PlainResidence, chosen: Integers, rule: SwapRule, limit: float
) -> PlainTransfers:
    seconds, live, fields, _ = held
    capacity, lead = conditions.capacity_bytes, rule.lead * seconds.sum()
    link, piece = conditions.rates, conditions.piece_bytes
    return schedule(seconds, live, Gaps(*fields), chosen, capacity, link, lead, piece, limit)


@compiled
def beats(trial: Trial, other: Trial, warmth: float) -> bool:
    """Whether a trial is quicker than another, or nearer to the capacity where neither keeps it."""
    if np.isfinite(trial.seconds) or np.isfinite(other.seconds):
        return trial.seconds < other.seconds * (1 + warmth)
    return trial.excess_bytes < other.excess_bytes


@compiled
def _annealed_plainly(
    conditions: Conditions, alike: Alike, now: Trial, best: Trial, random: np.random.Generator, cooling: Cooling,
    begin: int, end: int,
) -> tuple[_Plain, _Plain]:  # fmt: skip
    for number in range(begin, end):
        if best.seconds <= cooling.enough:
            break
        policy, rule = now.policy, now.rule
        if random.integers(0, 9) > 0:
            policy = policy.copy()
            change(alike, policy, random)
            if (policy == now.policy).all():
                continue
        else:
            rule = _other(rule, random)
        temperature = cooling.warm * (cooling.cold / cooling.warm) ** (number / cooling.trials)
        warmth = temperature * random.standard_exponential()
        trial = _tried(conditions, policy, rule, now.seconds * (1 + warmth))
        if beats(trial, now, warmth):
            now = trial
        if beats(trial, best, 0.0):
            best = trial
    return _plain(now), _plain(best)


@compiled
def _other(rule: SwapRule, random: np.random.Generator) -> SwapRule:
    """A rule that differs in one respect."""
    which = random.integers(0, 3)
    if which == 0:
        return SwapRule(rule.way, HEADROOMS[random.integers(0, len(HEADROOMS))], rule.lead)
    if which == 1:
        return SwapRule(rule.way, rule.headroom, LEADS[random.integers(0, len(LEADS))])
    return SwapRule(FARTHEST if rule.way == PARTLY else PARTLY, rule.headroom, rule.lead)
