"""What have methods in common that choose the order alone? An order with what is known of it, a beam, and the moves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outgrow.ir.graph import Graph
from outgrow.plan import Move
from outgrow.planning.order.ideals import packed, search_ideals
from outgrow.planning.order.jobs import Jobs, live_bytes_in
from outgrow.planning.order.moves import moves_to
from outgrow.planning.problem import Problem
from outgrow.planning.published.refusal import refusal

_BEAM_WIDTH = 64
_BEAM_WORK = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order of jobs, its peak, and whether it is proved to be a best one, as far as the method asks.

    `shortfall` says in a few words what the method could not do, if so.
    """

    order: tuple[int, ...]
    peak_bytes: int
    is_optimal: bool
    shortfall: str = ""


def unproved(jobs: Jobs, order: Sequence[int]) -> Schedule:
    """Return an order of the jobs, of which nothing is proved."""
    return Schedule(tuple(order), max(live_bytes_in(jobs, order), default=0), is_optimal=False)


def beam(jobs: Jobs, known: Schedule, *, by_peak: bool = False) -> Schedule:
    """Return the order of less peak that a narrow beam finds, or else the known one, which is best if nothing was left.

    Of each level the beam keeps a few sets of jobs: those that hold least, or with `by_peak` those of the lowest peak.
    """
    found = search_ideals(packed(jobs), known.peak_bytes - 1, _BEAM_WIDTH, _BEAM_WORK, by_peak=by_peak)
    if found.order is None:
        return replace(known, is_optimal=found.is_exhaustive)
    return Schedule(found.order, found.peak_bytes, is_optimal=False)


def moves_within(problem: Problem, method: str, graph: Graph, jobs: Jobs, schedule: Schedule) -> tuple[Move, ...]:
    """Return the moves into a schedule of the jobs of `graph`, and remark on its shortfall.

    Raises `Infeasible` if it does not keep the budget.
    """
    ops = [graph.ops[job] for job in schedule.order]
    if schedule.peak_bytes > problem.budget.capacity_bytes:
        limits = "it chooses the order alone"
        limits += f" ({schedule.shortfall})" if schedule.shortfall else ""
        raise refusal(problem, method, limits, live_bytes_in(jobs, schedule.order), ops)
    if schedule.shortfall:
        problem.remark(f"{method}: {schedule.shortfall}")
    return moves_to(problem.graph, [op.name for op in ops])
