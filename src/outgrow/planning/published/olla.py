"""The order of OLLA (renamed MODeL): an integer programme over which op runs when and what is preserved meanwhile.

Steiner, Elhoushi, Kahn and Hegarty 2022, "OLLA: Optimizing the Lifetime and Location of Arrays to Reduce the Memory
Usage of Neural Networks", https://arxiv.org/abs/2210.12924 (ICML 2023 as "MODeL: Memory Optimizations for Deep
Learning").

    variables    G[k,t] = 1 iff op k runs at step t, which generates what it brings into being        binary
                 P[s,t] = 1 iff storage s is preserved from before step t into it                     in [0, 1]
                 C[u,t] = 1 only if op u has run before step t                                        in [0, 1]
    peak                                                                                 in granules
    objective    min peak
    (1) once     sum over t of G[k,t] = 1                                                             `_once`
    (2) alone    sum over k of G[k,t] = 1                                                             `_alone`
    (3) before   C[u,t] <= C[u,t-1] + G[u,t-1] and G[v,t] <= C[u,t]    for every edge u -> v that no
                 storage born at u carries (a "control edge": a tensor of no bytes)                   `_before`
    (4) kept     P[s,t] <= P[s,t-1] + G[birth of s,t-1]                                               `_kept`
    (5) there    G[k,t] <= P[s,t]    for every s that k touches and does not bring into being         `_kept`
    (6) memory   start + sum of P[s,t] size(s) + sum of G[k,t] (born(k) + workspace(k))
                 + what lasts and was born before t <= peak                                           `_memory`

and its ways to keep it small:

    spans        G[k,t] exists from the number of ops before k in every order (ASAP) to that of all ops less those
                 behind k (ALAP); P[s,t] from the first possible birth to the last possible use, and is 1 from the last
                 possible birth to the first step at which its last use may run
    updates      update ops are forced early: each precedes the op that follows it in the order of
                 `planning.free.early_updates`
    granules     sizes are divided by their greatest common divisor
    fitting      (6) is left out at steps whose worst case stays within what is unavoidable anyway

Departures: one op a step, since one device runs one at a time and workspace counts (the paper's later version packs
several into a step). P is continuous: with G binary, (4) and (5) make it 1 where that matters. Edges hold all conflicts
over storages, not only data. HiGHS replaces Gurobi, and is given no first solution: the peak of a beam search bounds
`peak` instead, and its order is the result where the programme finds no better one in time or is too
large to be written down. Addresses are left to `planning.addresses.placement`. A time limit that cuts makes the result
depend on the machine. The first op stays first (see `planning.order.moves`).
"""

from dataclasses import replace
from functools import reduce
from math import gcd

from outgrow.ir.graph import Graph
from outgrow.plan import Move
from outgrow.planning.bound.programme import Programme, solve
from outgrow.planning.free.early_updates import early_updates
from outgrow.planning.names import SOLVER_SECONDS
from outgrow.planning.order.jobs import Jobs, jobs_of, live_bytes_in
from outgrow.planning.order.unavoidable import unavoidable_bytes
from outgrow.planning.problem import Problem
from outgrow.planning.published.orders import Schedule, beam, moves_within, unproved

_MOST_VARIABLES = 60_000
_GAP = 0.005


def olla(problem: Problem) -> tuple[Move, ...]:
    """Return the moves into OLLA's order.

    The solver is stopped after the problem's `solver_seconds`; that the order is the best so far is then remarked.
    Raises `Infeasible` if the least peak that was found is above the budget: the order is all that is chosen here.
    """
    graph, jobs = jobs_with_early_updates(problem)
    problem.progress("solve", 0.0)
    return moves_within(problem, "OLLA", graph, jobs, olla_schedule(jobs, problem.solver_seconds))


def jobs_with_early_updates(problem: Problem) -> tuple[Graph, Jobs]:
    """Return the graph with early updates, and its jobs with an edge from each moved op to the next one not moved.

    With updates out of the way, partial orders of as many jobs have come equally far, and a beam compares like with
    like.
    """
    early, moves = early_updates(problem, problem.graph)
    moved = {name for decision in moves for name in decision.ops}
    jobs = jobs_of(early, problem.workspace, first_stays=True)
    waits = [set(earlier) for earlier in jobs.predecessors]
    following: int | None = None
    for number in reversed(range(len(jobs))):
        if early.ops[number].name not in moved:
            following = number
        elif following is not None:
            waits[following].add(number)
    return early, replace(jobs, predecessors=tuple(tuple(sorted(earlier)) for earlier in waits))


def olla_schedule(jobs: Jobs, time_limit: float = SOLVER_SECONDS) -> Schedule:
    """Return the best order that the programme finds within `time_limit` seconds, or that of a beam search."""
    known = beam(jobs, unproved(jobs, range(len(jobs))))
    bound = unavoidable_bytes(jobs)
    if known.peak_bytes <= bound * (1 + _GAP):
        return replace(known, is_optimal=True)
    spans = _Spans(jobs)
    if spans.variables > _MOST_VARIABLES:
        size = f"its programme would have {spans.variables} variables, more than {_MOST_VARIABLES}"
        return replace(known, shortfall=f"{size}; the order of a beam search")
    programme = _Order(jobs, spans, bound, known.peak_bytes)
    solution = solve(programme.rows, time_limit=time_limit, gap=_GAP)
    shortfall = f"stopped after {time_limit:g} s, best order so far" if solution.is_stopped else ""
    if solution.values is None:
        return replace(known, shortfall=shortfall)
    ran_at = {job: t for (job, t), column in programme.generate.items() if solution.values[column] > 0.5}
    order = tuple(sorted(ran_at, key=ran_at.__getitem__))
    peak = max(live_bytes_in(jobs, order))
    if peak > known.peak_bytes:
        return replace(known, shortfall=shortfall)
    return Schedule(order, peak, solution.is_optimal, shortfall)


class _Spans:
    """When each job may run, when each mortal storage may be preserved, and which edges no storage carries."""

    def __init__(self, jobs: Jobs) -> None:
        count = len(jobs)
        self.soonest = [bits.bit_count() for bits in jobs.ancestors]
        self.latest = [count - 1 - bits.bit_count() for bits in jobs.descendants]
        self.users: list[list[int]] = [[] for _ in jobs.sizes]
        for job, storages in enumerate(jobs.touches):
            for storage in storages:
                if jobs.births[storage] != job:
                    self.users[storage].append(job)
        self.preserved: list[range] = []
        self.certain: list[range] = []
        for storage, birth in enumerate(jobs.births):
            users = self.users[storage]
            begin, sure = (0, 0) if birth is None else (self.soonest[birth] + 1, self.latest[birth] + 1)
            end = 1 + max((self.latest[job] for job in users), default=-1)
            sure_end = 1 + max((self.soonest[job] for job in users), default=-1)
            self.preserved.append(range(begin, max(begin, end)))
            self.certain.append(range(sure, max(sure, sure_end)))
        data = [{jobs.births[storage] for storage in storages} for storages in jobs.touches]
        self.control: dict[int, list[int]] = {}
        for later, earlier in enumerate(jobs.predecessors):
            for job in earlier:
                if job not in data[later]:
                    self.control.setdefault(job, []).append(later)
        self.controlling = {
            job: range(self.soonest[job] + 1, 1 + max(self.latest[one] for one in later))
            for job, later in self.control.items()
        }
        runs = sum(late - soon + 1 for soon, late in zip(self.soonest, self.latest, strict=True))
        self.variables = runs + sum(map(len, self.preserved)) + sum(map(len, self.controlling.values()))


class _Order:
    """The programme and its variables: `generate` and `preserve` are the columns of G and P."""

    def __init__(self, jobs: Jobs, spans: _Spans, bound: int, known_peak: int) -> None:
        self.jobs, self.spans, self.bound = jobs, spans, bound
        self.granule = reduce(gcd, (*jobs.sizes, *jobs.born_bytes, *jobs.workspace_bytes, jobs.start_bytes, bound)) or 1
        self.rows = Programme()
        self.peak = self.rows.variable(bound / self.granule, known_peak / self.granule, cost=1.0)
        self.generate: dict[tuple[int, int], int] = {}
        self.preserve: dict[tuple[int, int], int] = {}
        for job in range(len(jobs)):
            for t in range(spans.soonest[job], spans.latest[job] + 1):
                self.generate[job, t] = self.rows.variable(0, 1, is_integer=True)
        for storage, span in enumerate(spans.preserved):
            for t in span:
                self.preserve[storage, t] = self.rows.variable(float(t in spans.certain[storage]), 1)
        self._once()
        self._alone()
        self._before()
        self._kept()
        self._memory()

    def _ran_by(self, job: int, t: int) -> dict[int, float]:
        """The terms of: job has run at step t or before."""
        return {
            self.generate[job, at]: 1.0 for at in range(self.spans.soonest[job], min(t, self.spans.latest[job]) + 1)
        }

    def _once(self) -> None:
        for job in range(len(self.jobs)):
            self.rows.row(self._ran_by(job, len(self.jobs)).items(), lower=1, upper=1)

    def _alone(self) -> None:
        at_step: dict[int, dict[int, float]] = {}
        for (_, t), column in self.generate.items():
            at_step.setdefault(t, {})[column] = 1.0
        for terms in at_step.values():
            self.rows.row(terms.items(), lower=1, upper=1)

    def _before(self) -> None:
        for job, span in self.spans.controlling.items():
            fired = {t: self.rows.variable(float(t > self.spans.latest[job]), 1) for t in span}
            for t, column in fired.items():
                terms = {column: 1.0}
                for source in (fired.get(t - 1), self.generate.get((job, t - 1))):
                    if source is not None:
                        terms[source] = -1.0
                self.rows.row(terms.items(), upper=0)
            for later in self.spans.control[job]:
                for t in range(self.spans.soonest[later], self.spans.latest[later] + 1):
                    self.rows.row([(self.generate[later, t], 1.0), (fired[t], -1.0)], upper=0)

    def _kept(self) -> None:
        for (storage, t), column in self.preserve.items():
            birth = self.jobs.births[storage]
            if birth is None and t == 0:
                continue
            terms = {column: 1.0}
            for source in (
                self.preserve.get((storage, t - 1)),
                None if birth is None else self.generate.get((birth, t - 1)),
            ):
                if source is not None:
                    terms[source] = -1.0
            self.rows.row(terms.items(), upper=0)
        for storage, users in enumerate(self.spans.users):
            for job in users:
                for t in range(self.spans.soonest[job], self.spans.latest[job] + 1):
                    self.rows.row([(self.generate[job, t], 1.0), (self.preserve[storage, t], -1.0)], upper=0)

    def _memory(self) -> None:
        jobs, granule = self.jobs, self.granule
        mortal_at_start = sum(size for size, birth in zip(jobs.sizes, jobs.births, strict=True) if birth is None)
        fixed = (jobs.start_bytes - mortal_at_start) / granule
        preserved: dict[int, dict[int, float]] = {}
        for (storage, t), column in self.preserve.items():
            preserved.setdefault(t, {})[column] = jobs.sizes[storage] / granule
        running: dict[int, dict[int, float]] = {}
        for (job, t), column in self.generate.items():
            running.setdefault(t, {})[column] = (jobs.born_bytes[job] + jobs.workspace_bytes[job]) / granule
        for t, needs in running.items():
            held = preserved.get(t, {})
            for job, size in enumerate(jobs.lasting):
                if size:
                    for column in self._ran_by(job, t - 1):
                        held[column] = size / granule
            lasting = sum(jobs.lasting) / granule
            kept = sum(jobs.sizes[storage] for storage, span in enumerate(self.spans.preserved) if t in span) / granule
            if fixed + kept + lasting + max(needs.values()) <= self.bound / granule:
                continue
            terms = {self.peak: -1.0}
            for column, size in (*held.items(), *needs.items()):
                terms[column] = terms.get(column, 0.0) + size
            self.rows.row(terms.items(), upper=-fixed)
