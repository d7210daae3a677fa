"""The joint choice: order, re-use, recomputation and swapping, decided by what the schedule costs.

    1. updates move forward, dying operands are written over (`planning.free`): these free memory at no cost; each order
       of the step is a *board* to search on (`boards`)
    2. if the step fits now, nothing is moved
    3. a policy says for every rest of a storage whether its bytes are kept or built again (`sequence`), and for what
       outlives the step whether it is stowed in the next tier between steps (`residence`); for a policy, the sequence
       of ops, its live bytes, the gaps to swap and the transfers in time follow, and so its seconds
    4. from here on, a board is *contracted*: of its ops and storages only the large ones are seen (`contracted`); what
       is found in the end is judged on the board as a whole
    5. the scan of each board: policies that build again whatever costs less than some seconds a byte, or a byte and
       second of its rest, for many such prices; then each kind of rest in turn is given the choice that suits it best
    6. the search (`annealing`), which a quick plan does without: short runs from there and from keeping everything, on
       every board, then long ones from the best of these; two runs at a time, on two processors

The result is deterministic: every run ends after a number of trials that depends on the graph alone, its random numbers
come from a fixed seed, and parallel runs share nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from threading import Event

import numpy as np

from outgrow.errors import NotApplicable
from outgrow.planning.compiled import off_main_thread
from outgrow.planning.floor import needed_bytes
from outgrow.planning.free.free import Freed
from outgrow.planning.order.lean import Orders
from outgrow.planning.problem import Problem
from outgrow.planning.search.annealing import HEADROOMS, LEADS, Cooling, Trial, annealed, beats
from outgrow.planning.search.boards import Board, boards
from outgrow.planning.search.choice import FARTHEST, PARTLY, WIDEST, SwapRule
from outgrow.planning.search.decisions import decisions_of
from outgrow.planning.search.sequence import DISCARD, KEEP, REBUILD, Policy
from outgrow.planning.search.space import Space
from outgrow.rewriting.derive import Stage, carried_out

_PRICES = 24
_USUAL = [SwapRule(FARTHEST, headroom, lead) for headroom, lead in ((0.0, 0.1), (0.08, 0.1), (0.25, 0.5))]
"""Rules of which one suits most policies."""
_SHORTEST = 1e-3
"""Where prices are by the second, a rest counts as lasting at least this share of the longest one."""
_MOST_TRIALS, _FEWEST_TRIALS, _TRIALS_A_REST = 200_000, 400, 500
_SHORT_RUNS = 8
"""So many, since runs from one start end in optima that differ far more than what a longer run gains."""
_WARM, _LUKEWARM, _COLD = 1e-2, 4e-3, 3e-5
"""Temperatures, as shares of the step: at the beginning of a short run, of a long one, and at the end of each."""
_AT_ONCE = 256
"""Trials between two reports of progress."""
_SMALL = 4_000
"""In steps of at most this many ops every rule for choosing gaps is tried."""


@dataclass(frozen=True)
class _Found:
    """A trial on a board."""

    board: Board
    trial: Trial

    @property
    def seconds(self) -> float:
        """What the step takes; infinite where the capacity does not hold."""
        return self.trial.seconds

    @property
    def is_enough(self) -> bool:
        """Whether no better trial is worth looking for."""
        return self.seconds <= self.board.enough

    def judged(self) -> "_Found":
        """Return what the trial costs on the board as a whole, under the habits that suit it best there."""
        board, contraction = self.board.whole, self.board.contraction
        if contraction is None:
            return self
        trial = board.tried(contraction.spread(self.trial.policy), self.trial.rule)
        return _Found(board, _settled(board, trial))


def search(problem: Problem, orders: Orders, freed: Freed) -> tuple[Stage, ...]:
    """Return the stages that the decisions of the joint search make; none where the captured step fits.

    `orders` are those of the problem, `freed` is the captured graph after the rewrites that are free. Raises
    `Infeasible` if the budget is below the floor of every order.
    """
    if needed_bytes(problem) <= problem.budget.capacity_bytes:
        return ()
    found = off_main_thread(partial(_searched, problem, orders, freed))
    return _first_admitted(problem, sorted(found, key=_seconds))


def _first_admitted(problem: Problem, ranked: Iterable[_Found]) -> tuple[Stage, ...]:
    """Return the stages of the first trial that the laws admit; that one was passed over is remarked."""
    possible = [found for found in ranked if np.isfinite(found.seconds)]
    assert possible, "a budget at or above the floor has a plan: everything unused can be away"
    for found in possible:
        decisions = (*found.board.free, *decisions_of(found.board.space, found.trial))
        try:
            return carried_out(problem.graph, decisions)
        except NotApplicable as refusal:
            problem.remark(f"A quicker plan was passed over, since one of its decisions is not right: {refusal}")
    raise AssertionError("of several plans the laws admit one")


def _searched(problem: Problem, orders: Orders, freed: Freed, is_wanted: Event) -> list[_Found]:
    """Return what the search finds, and plain trials."""
    scanned: list[_Found] = []
    plain: list[_Found] = []
    for group in boards(problem, orders, freed, is_wanted):
        found: list[_Found] = []
        for board in group:
            plain += [_Found(board, board.tried(policy)) for policy in _plain(board.space)]
            small = board.contracted()
            found.append(_Found(small, _scanned(small)))
        scanned.append(min(found, key=_seconds))
        if scanned[-1].is_enough and scanned[-1].judged().is_enough:
            break
    return [*(found.judged() for found in _improved(scanned)), *plain]


def _plain(space: Space) -> tuple[Policy, Policy]:
    """The policies that the scan begins with."""
    return space.start, space.stowing


# The scan --------------------------------------------------------------------------------------------------------


def _scanned(board: Board) -> Trial:
    """Return the best of the policies that build again what is cheap, at many prices, improved kind by kind."""
    best, stowing = map(board.tried, _plain(board.space))
    best = stowing if beats(stowing, best, 0.0) else best
    for policy in _cheap(board.space, best.policy):
        best = board.best_of(policy, _USUAL, best)
    if board.space.problem.quick:
        return _settled(board, best)
    return _settled(board, _kind_by_kind(board, _settled(board, best)))


def _cheap(space: Space, start: Policy) -> Iterator[Policy]:
    """Yield policies that build again what is cheap; what is dear and needed for that is built again too, or kept.

    What is dear to stow is as well, or is not.
    """
    inner = space.rests[start[space.rests] == KEEP]
    if not len(inner):
        return
    last = space.rests[start[space.rests] == DISCARD]
    shortest = space.lasting.max() * _SHORTEST or 1.0
    for each in (space.price, space.price / np.maximum(space.lasting, shortest)):
        for price in np.unique(np.quantile(each[inner], np.linspace(0, 1, _PRICES), method="lower")):
            dear = last[each[last] > price]
            for choice in (DISCARD, REBUILD):
                policy = start.copy()
                policy[inner[each[inner] <= price]] = choice
                yield policy
                if len(dear):
                    policy = policy.copy()
                    policy[dear] = KEEP
                    yield policy


def _kind_by_kind(board: Board, best: Trial) -> Trial:
    """Give each kind of rest the choice that suits it best while the others stay; repeat this as long as it pays.

    Where there are more kinds than can be tried, the largest are.
    """
    before, left = float("inf"), board.affordable // 3
    kinds = sorted(board.space.kinds, key=board.space.bytes_of, reverse=True)[: left // 3]
    while len(kinds) * 3 <= left and best.seconds < before * (1 - 1e-3):
        before = best.seconds
        left -= len(kinds) * 3
        for members in kinds:
            for choice in (KEEP, REBUILD, DISCARD):
                if (best.policy[members] != choice).any():
                    policy = best.policy.copy()
                    policy[members] = choice
                    best = board.best_of(policy, (best.rule,), best)
    return best


def _settled(board: Board, trial: Trial) -> Trial:
    """Return the policy under the habits that suit it best; the rule that looks at every gap is for small steps."""
    ways = (FARTHEST, PARTLY, WIDEST) if board.ops <= _SMALL else (FARTHEST, PARTLY)
    rules = [SwapRule(way, headroom, lead) for headroom, lead, way in product(HEADROOMS, LEADS, ways)]
    return board.best_of(trial.policy, rules, trial)


# The search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """One run of simulated annealing: where it begins, its seed, its trials, and how warm it is at first."""

    start: _Found
    seed: int
    trials: int
    warm: float

    def result(self, progress: Callable[[float], None]) -> _Found:
        """Return the best trial that the run finds."""
        board = self.start.board
        random = np.random.default_rng(self.seed)
        now = best = self.start.trial
        cooling = Cooling(self.trials, self.warm, _COLD, board.enough)
        for begin in range(0, self.trials, _AT_ONCE):
            board.check_wanted()
            end = min(begin + _AT_ONCE, self.trials)
            now, best = annealed(board.conditions, board.space.alike, now, best, random, cooling, begin, end)
            if best.seconds <= board.enough:
                break
            progress(end / self.trials)
        return _Found(board, _settled(board, best))


def _improved(scanned: Sequence[_Found]) -> list[_Found]:
    """Return what the scans of all boards found, and what the search finds from there."""
    best = min(scanned, key=_seconds)
    problem = best.board.space.problem
    if problem.quick or best.is_enough or not any(len(found.board.space.rests) for found in scanned):
        return [*scanned]
    report = problem.progress
    starts = list(_starts([found for found in scanned if len(found.board.space.rests)]))
    short = [_Run(start, seed, _trials(start.board) // (2 * _SHORT_RUNS), _WARM) for seed, start in enumerate(starts)]
    found = _in_parallel(short, lambda done: report("search", done / 3))
    found = sorted(found, key=_seconds)[:2]
    long = [_Run(start, seed, _trials(start.board) // 2, _LUKEWARM) for seed, start in enumerate(found, len(short))]
    found = _in_parallel(long, lambda done: report("search", (1 + 2 * done) / 3))
    return [*scanned, *found]


def _starts(scanned: Sequence[_Found]) -> Iterator[_Found]:
    """Yield the starting points of the short runs, equally many on each board, two of them from keeping everything."""
    for found in scanned:
        board = found.board
        plain = _Found(board, _settled(board, board.tried(board.space.start)))
        runs = _SHORT_RUNS // len(scanned)
        yield from (plain if np.isfinite(plain.seconds) else found,) * 2
        yield from (found,) * (runs - 2)


def _trials(board: Board) -> int:
    """Return how many trials a search on a board makes, all told."""
    return max(_FEWEST_TRIALS, min(_MOST_TRIALS, board.affordable, _TRIALS_A_REST * len(board.space.rests)))


def _seconds(found: _Found) -> float:
    return found.seconds


def _in_parallel(runs: Sequence[_Run], report: Callable[[float], None]) -> list[_Found]:
    """Return the results of runs, two at a time; this thread takes every second run and reports its progress."""
    mine = runs[::2]
    with ThreadPoolExecutor(1) as pool:
        others = [pool.submit(run.result, lambda _done: None) for run in runs[1::2]]
        found = [
            run.result(lambda done, before=number: report((before + done) / len(mine)))
            for number, run in enumerate(mine)
        ]
        return [*found, *(other.result() for other in others)]
