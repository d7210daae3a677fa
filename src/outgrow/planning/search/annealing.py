"""What does a policy cost, and which policies near it cost less? Compiled, since the search asks thousands of times.

A *trial* is a policy with the habits by which gaps are chosen: the share of the capacity that is left free, the rule,
and how early copies may come back, as a share of the step. From a policy follow the ops that run (`sequence`), what
they hold (`residence`), the gaps to swap and the transfers in time (`transfers`), and so its seconds; where the
capacity is exceeded, they are infinite, and the trial says by how many bytes.

Simulated annealing goes from trial to trial by `changes`: a change is taken if the step is quicker, or hardly slower
while the search is still warm.

After Kirkpatrick, Gelatt, Vecchi 1983, "Optimization by Simulated Annealing", https://doi.org/10.1126/science.220.4598.671.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from outgrow.planning.compiled import compiled
from outgrow.planning.search.changes import Alike, Integers, Policy, change
from outgrow.planning.search.choice import FARTHEST, PARTLY, choose
from outgrow.planning.search.residence import residence
from outgrow.planning.search.sequence import Flags, expanded
from outgrow.planning.search.space import Space
from outgrow.planning.search.transfers import rates, walk

HEADROOMS = (0.0, 0.04, 0.08, 0.15, 0.25, 0.4)
LEADS = (0.02, 0.1, 0.5)
_NOWHERE = 1 << 62


class Costs(NamedTuple):
    """What does not change from trial to trial: the arrays of `tables`, and what the machine does."""

    touch_start: Integers
    touched: Integers
    touch_use: Integers
    touch_writes: Flags
    birth: Integers
    stays: Flags
    moves: Flags
    anchors: Flags
    stow_rest: Integers
    size: Integers
    writes: Integers
    limit: Integers
    write_start: Integers
    write_at: Integers
    over: Integers
    lends: Integers
    op_seconds: NDArray[np.float64]
    again_seconds: NDArray[np.float64]
    op_workspace: Integers
    capacity_bytes: int
    out_rate: float
    in_rate: float
    latency: float
    half_duplex: bool
    piece_bytes: int
    part_bytes: int


class Trial(NamedTuple):
    """A policy, the habits beside it, and what they cost."""

    policy: Policy
    headroom: float
    rule: int
    lead: float
    seconds: float
    excess_bytes: int


def costs_of(space: Space) -> Costs:
    """Return the costs of a space, as compiled code sees them."""
    tables, problem = space.tables, space.problem
    return Costs(
        tables.touch_start,
        tables.touched,
        tables.touch_use,
        tables.touch_writes,
        tables.birth,
        tables.stays,
        tables.moves,
        tables.anchors,
        tables.stow_rest,
        tables.size,
        tables.writes,
        tables.limit,
        tables.write_start,
        tables.write_at,
        tables.over,
        tables.lends,
        tables.op_seconds,
        tables.again_seconds,
        tables.op_workspace,
        problem.budget.capacity_bytes,
        *rates(problem.machine.link),
        problem.piece_bytes,
        problem.part_bytes,
    )


def tried(costs: Costs, policy: Policy, headroom: float, rule: int, lead: float) -> Trial:
    """Return the trial of a policy under some habits."""
    return Trial(*_tried_plainly(costs, policy, headroom, rule, lead))


def annealed(
    costs: Costs, alike: Alike, now: Trial, best: Trial, random: np.random.Generator, begin: int, end: int, trials: int,
    warm: float, cold: float, enough: float,
) -> tuple[Trial, Trial]:  # fmt: skip
    """Make changes `begin` to `end` of a run of `trials`; return where it stands then, and the best trial so far.

    `warm` and `cold` are its temperatures at both ends, as shares of the step; it ends early once a trial takes at most
    `enough` seconds.
    """
    found = _annealed_plainly(costs, alike, now, best, random, begin, end, trials, warm, cold, enough)
    return Trial(*found[:6]), Trial(*found[6:])


_Plain: TypeAlias = tuple[Policy, float, int, float, float, int]
"""The fields of a `Trial`. What compiled code hands to Python is made of plain tuples and arrays: numba makes a named
tuple by calling Python, where Ctrl-C may strike, and does not look whether it did."""


@compiled
def _plain(trial: Trial) -> _Plain:
    return trial.policy, trial.headroom, trial.rule, trial.lead, trial.seconds, trial.excess_bytes


@compiled
def _tried_plainly(costs: Costs, policy: Policy, headroom: float, rule: int, lead: float) -> _Plain:
    return _plain(_tried(costs, policy, headroom, rule, lead))


@compiled
def _tried(costs: Costs, policy: Policy, headroom: float, rule: int, lead: float) -> Trial:
    culprit, op, rebuilding, _, storage, use_instance, use_at, use_writes = expanded(
        policy, costs.touch_start, costs.touched, costs.touch_use, costs.touch_writes,
        costs.birth, costs.stays, costs.writes, costs.limit, costs.write_start, costs.write_at,
    )  # fmt: skip
    if culprit >= 0:
        return Trial(policy, headroom, rule, lead, np.inf, _NOWHERE)
    live, instance, begin, end, size, dirty, whole, _ = residence(
        policy, op, storage, costs.size, costs.stays, costs.moves, costs.anchors, costs.stow_rest, costs.birth,
        costs.over, costs.lends, use_instance, use_at, use_writes,
    )  # fmt: skip
    live += costs.op_workspace[op]
    seconds = np.where(rebuilding < 0, costs.op_seconds[op], costs.again_seconds[op])
    moved = choose(
        live, seconds, begin, end, size, whole, costs.capacity_bytes, headroom, rule, costs.part_bytes
    )  # fmt: skip
    found = walk(
        seconds, live, instance, begin, end, dirty, moved, costs.capacity_bytes, costs.out_rate, costs.in_rate,
        costs.latency, costs.half_duplex, lead * seconds.sum(), costs.piece_bytes,
    )  # fmt: skip
    return Trial(policy, headroom, rule, lead, found[0], found[1])


@compiled
def beats(trial: Trial, other: Trial, warmth: float) -> bool:
    """Whether a trial is quicker than another, or nearer to the capacity where neither keeps it."""
    if np.isfinite(trial.seconds) or np.isfinite(other.seconds):
        return trial.seconds < other.seconds * (1 + warmth)
    return trial.excess_bytes < other.excess_bytes


@compiled
def _annealed_plainly(
    costs: Costs, alike: Alike, now: Trial, best: Trial, random: np.random.Generator, begin: int, end: int, trials: int,
    warm: float, cold: float, enough: float,
) -> tuple[Policy, float, int, float, float, int, Policy, float, int, float, float, int]:  # fmt: skip
    for number in range(begin, end):
        if best.seconds <= enough:
            break
        headroom, rule, lead, policy = now.headroom, now.rule, now.lead, now.policy
        if random.integers(0, 9) > 0:
            policy = policy.copy()
            change(alike, policy, random)
            if (policy == now.policy).all():
                continue
        else:
            habit = random.integers(0, 3)
            if habit == 0:
                headroom = HEADROOMS[random.integers(0, len(HEADROOMS))]
            elif habit == 1:
                lead = LEADS[random.integers(0, len(LEADS))]
            else:
                rule = FARTHEST if rule == PARTLY else PARTLY
        trial = _tried(costs, policy, headroom, rule, lead)
        temperature = warm * (cold / warm) ** (number / trials)
        if beats(trial, now, temperature * random.standard_exponential()):
            now = trial
        if beats(trial, best, 0.0):
            best = trial
    return _plain(now) + _plain(best)
