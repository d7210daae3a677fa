"""The joint choice: order, re-use, recomputation and swapping, decided by what the schedule costs.

    1. updates move forward, dying operands are written over (`free`): these free memory at no cost
    2. if the step fits now, nothing is moved
    3. gaps to swap: for a few targets below the capacity and two ways to choose, schedule the transfers and keep
       the quickest (a threshold scan: a lower target moves more bytes, but leaves room to bring them back early)
    4. while a stall is left: try recomputing the storages of gaps that stall or are swapped, cheapest byte first;
       a recomputation stays if the schedule of the rewritten graph is quicker by more than a thousandth

The result is deterministic: nothing depends on time or on a seed. Departures from the best possible: the order of
the ops is otherwise kept, and recomputation runs directly before its use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outgrow.analysis.liveness import Gap
from outgrow.ir.graph import Graph
from outgrow.plan import Decision
from outgrow.planning.floor import require_feasible
from outgrow.planning.free import free_rewrites
from outgrow.planning.problem import Problem
from outgrow.planning.recompute import Candidate, candidates
from outgrow.planning.swap import Profile, Schedule, choose_gaps, profile_of, schedule
from outgrow.rewriting.recompute import recompute

_HEADROOMS = (0.0, 0.04, 0.08, 0.15, 0.25, 0.4)
_LEADS = (0.02, 0.1, 0.5)
_TRIALS = 48


@dataclass(frozen=True, slots=True)
class _Choice:
    """How gaps were chosen: the share of the capacity left free, the rule, and how early copies may come back."""

    headroom: float
    by_distance: bool
    lead: float


@dataclass(frozen=True)
class _State:
    """A rewritten graph with its best schedule so far."""

    graph: Graph
    decisions: tuple[Decision, ...]
    profile: Profile
    schedule: Schedule
    choice: _Choice

    @property
    def stall_seconds(self) -> float:
        return self.schedule.seconds - float(self.profile.seconds.sum())


def search(problem: Problem) -> tuple[Decision, ...]:
    """Return the decisions of the joint search; none where the captured step fits.

    Raises `Infeasible` if the budget is below the floor.
    """
    if int(profile_of(problem, problem.graph).live.max(initial=0)) <= problem.budget.capacity_bytes:
        return ()
    graph, free = free_rewrites(problem)
    require_feasible(problem, graph)
    profile = profile_of(problem, graph)
    choices = [_Choice(room, rule, lead) for room in _HEADROOMS for rule in (False, True) for lead in _LEADS]
    state = _best(problem, graph, free, profile, choices)
    assert state is not None, "a budget at or above the floor has a plan: everything unused can be away"
    state = _with_recomputation(problem, state)
    return (*state.decisions, *state.schedule.swaps)


def _best(
    problem: Problem, graph: Graph, decisions: tuple[Decision, ...], profile: Profile, choices: Sequence[_Choice]
) -> _State | None:
    best: _State | None = None
    seen: dict[tuple[tuple[Gap, ...], float], None] = {}
    capacity = problem.budget.capacity_bytes
    step_seconds = float(profile.seconds.sum())
    for choice in choices:
        target = int(capacity * (1 - choice.headroom))
        chosen = choose_gaps(profile, target, by_distance=choice.by_distance)
        if (chosen, choice.lead) in seen:
            continue
        seen[chosen, choice.lead] = None
        found = schedule(problem, profile, chosen, choice.lead * step_seconds)
        if found is not None and (best is None or found.seconds < best.schedule.seconds):
            best = _State(graph, decisions, profile, found, choice)
    return best


def _with_recomputation(problem: Problem, state: _State) -> _State:
    """Replace swaps by recomputations as long as that makes the step quicker."""
    trials, rejected = 0, set[str]()
    while trials < _TRIALS and state.stall_seconds > 1e-3 * state.schedule.seconds:
        better: _State | None = None
        for candidate in _worth_trying(problem, state, rejected):
            trials += 1
            problem.progress("recomputation", trials / _TRIALS)
            better = _recomputed(problem, state, candidate)
            if better is not None or trials >= _TRIALS:
                break
            rejected.add(candidate.gap.storage)
        if better is None:
            break
        state = better
    return state


def _worth_trying(problem: Problem, state: _State, rejected: set[str]) -> list[Candidate]:
    """Candidates among the swapped gaps: those that stall most first, then the cheapest bytes."""
    stalls = {(gap.storage, gap.begin): seconds for gap, seconds in state.schedule.stalls}
    found = candidates(problem, state.graph, state.profile)
    swapped = [item for item in found if (item.gap.storage, item.gap.begin) in stalls]
    usable = [item for item in swapped if item.gap.storage not in rejected]
    return sorted(usable, key=lambda item: item.seconds - stalls[item.gap.storage, item.gap.begin])


def _recomputed(problem: Problem, state: _State, candidate: Candidate) -> _State | None:
    graph = recompute(state.graph, candidate.decision)
    profile = profile_of(problem, graph)
    choice = state.choice
    choices = [_Choice(room, choice.by_distance, choice.lead) for room in {choice.headroom: 0, 0.0: 0, 0.08: 0}]
    found = _best(problem, graph, (*state.decisions, candidate.decision), profile, choices)
    if found is None or found.schedule.seconds > state.schedule.seconds * (1 - 1e-3):
        return None
    return found
