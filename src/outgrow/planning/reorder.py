"""Which order of the ops has the least peak? Exact where that can be had, a local optimum beyond.

    1. start       the best of the captured order and of those that are known already (early updates, say)
    2. bound       what is unavoidable in every order (`unavoidable`): an order that reaches it is a best one
    3. segments    between ops that every other op precedes or follows, each segment is ordered on its own; the worst
                   segment sets the peak, so it is lowered until it cannot be, or another one is the worst
    4. bisection   ask `ideals` for an order of the segment below a limit; halve the range between the bound and the
                   best known; where the search was exhaustive, a "no" is a proof and raises the bound
    5. widths      from a narrow beam to a wide one, each asked first whether it finds anything better at all
    6. windows     around the op at the peak, the ops of a window are ordered again with all others in their places

The result is never worse than any order it starts from. It is deterministic: `time_limit` is turned into an amount
of work, cells of arrays that a search may touch, so a slower machine takes longer and finds the same. The search ends
sooner where as much work again as led to the best order, and at least a quarter of all, has found nothing better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outgrow.ir.graph import Graph
from outgrow.plan import Move
from outgrow.planning.early_updates import early_updates
from outgrow.planning.ideals import Packed, packed, search_ideals
from outgrow.planning.jobs import Jobs, jobs_of, profile, segments, window
from outgrow.planning.moves import moves_to
from outgrow.planning.problem import Problem
from outgrow.planning.unavoidable import unavoidable_bytes
from outgrow.rewriting.derive import apply_laws

_CELLS_PER_SECOND = 300_000_000
_CELLS_AT_ONCE = 20_000_000
_WIDTHS = (4, 32, 256, 2048, 16384)
_WINDOWS = (24, 96, 384)
_WINDOW_WIDTH = 256
_PATIENCE = 4
"""A search that has found nothing better ends after 1/4 of all work."""


def least_peak_order(
    graph: Graph,
    workspace: Mapping[str, int],
    time_limit: float = 10.0,
    known: Sequence[Sequence[str]] = (),
    *,
    first_stays: bool = False,
) -> tuple[tuple[str, ...], int]:
    """Return the names of the ops in an order of little peak, and its peak in bytes.

    `graph` has no transfers. `workspace` gives bytes by captured op name, `time_limit` seconds on a machine of 2020,
    and `known` are valid orders that the result shall not be worse than, beside the captured one. `first_stays` keeps
    the first op in its place, as moves do.

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 8
    ... storage a 800
    ... storage b 800
    ... storage c 8
    ... storage d 8
    ... value %x: x@0 f32[2]
    ... %a: a@0 f32[200] = my.one(%x)
    ... %b: b@0 f32[200] = my.two(%x)
    ... %c: c@0 f32[2] = my.three(%a)
    ... %d: d@0 f32[2] = my.four(%b, %c)
    ... return %d
    ... ''')
    >>> least_peak_order(graph, {})
    (('one', 'three', 'two', 'four'), 824)
    """
    jobs = jobs_of(graph, workspace, first_stays=first_stays)
    number = {op.name: at for at, op in enumerate(graph.ops)}
    starts = [list(range(len(jobs))), *[[number[name] for name in order] for order in known]]
    order = min(starts, key=lambda order: max(profile(jobs, order), default=0))
    order = lowered(jobs, order, Effort.of(time_limit))
    return tuple(graph.ops[job].name for job in order), max(profile(jobs, order), default=0)


def reordered(problem: Problem, graph: Graph, time_limit: float = 10.0) -> tuple[Graph, tuple[Move, ...]]:
    """Return the graph in an order of little peak, not above that of early updates, and the moves that make it."""
    early, jobs = jobs_with_early_updates(problem, graph)
    order = lowered(jobs, list(range(len(jobs))), Effort.of(time_limit / 2))
    known = [[op.name for op in early.ops], [early.ops[job].name for job in order]]
    order, _ = least_peak_order(graph, problem.workspace, time_limit / 2, known, first_stays=True)
    moves = moves_to(graph, order)
    return (apply_laws(graph, moves), moves) if moves else (graph, ())


def jobs_with_early_updates(problem: Problem, graph: Graph) -> tuple[Graph, Jobs]:
    """Return the graph with early updates, and its jobs with an edge from each moved op to the next one not moved.

    With updates out of the way, partial orders of as many jobs have come equally far, and a beam compares like with
    like.
    """
    early, moves = early_updates(problem, graph)
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


@dataclass
class Effort:
    """How much work may be done in all, was done, and had been done when something better was last found."""

    limit: int
    done: int = 0
    best: int = 0

    @staticmethod
    def of(seconds: float) -> "Effort":
        """Return as much work as a machine of 2020 does in some seconds."""
        return Effort(int(seconds * _CELLS_PER_SECOND))

    @property
    def left(self) -> int:
        """The work that is left, if nothing better is found."""
        return min(self.limit, self.best + max(self.best, self.limit // _PATIENCE)) - self.done

    def spend(self, work: int, *, is_better: bool) -> None:
        """Note work that was done, and whether it found something."""
        self.done += work
        if is_better:
            self.best = self.done


def lowered(jobs: Jobs, order: list[int], effort: Effort) -> list[int]:
    """Return an order whose peak is at most that of `order`: segments first, then windows."""
    bytes_at = profile(jobs, order)
    best = order
    if bytes_at and max(bytes_at) > unavoidable_bytes(jobs):
        best = _by_segments(jobs, order, effort)
        best = _by_windows(jobs, best, effort)
    return best


def _by_segments(jobs: Jobs, order: list[int], effort: Effort) -> list[int]:
    """Lower the worst segment until it cannot be lowered; 3 of the module docstring."""
    parts = {part: order[part.start : part.stop] for part in segments(jobs)}
    tried: set[range] = set()
    while effort.left > 0:
        whole = [job for part in parts.values() for job in part]
        bytes_at = profile(jobs, whole)
        worst = max(parts, key=lambda part: max(bytes_at[part.start : part.stop]))
        if worst in tried:
            break
        tried.add(worst)
        inside = window(jobs, whole, worst.start, worst.stop)
        better = _by_bisection(inside, effort)
        if better is not None:
            parts[worst] = [whole[worst.start + at] for at in better]
    return [job for part in parts.values() for job in part]


def _by_bisection(jobs: Jobs, effort: Effort) -> tuple[int, ...] | None:
    """Return the order of the lowest peak found if it is lower than that of the order 0, 1, 2, ..., else None."""
    arrays = packed(jobs)
    proved, best = unavoidable_bytes(jobs), None
    peak = max(profile(jobs, range(len(jobs))))
    most = max(1, _CELLS_AT_ONCE // (2 * len(jobs) + len(jobs.sizes)))
    for width in dict.fromkeys(min(width, most) for width in _WIDTHS):
        low, limit = proved, peak - 1
        while low < peak and effort.left > 0:
            found = search_ideals(arrays, limit, width, effort.left)
            effort.spend(found.work, is_better=found.order is not None)
            if found.order is None:
                if found.is_exhaustive:
                    proved = max(proved, limit + 1)
                low = limit + 1
            else:
                best, peak = found.order, found.peak_bytes
            limit = (low + peak) // 2
    return best


def _by_windows(jobs: Jobs, order: list[int], effort: Effort) -> list[int]:
    """Lower the op at the peak by ordering a window around it, until no window helps; 6 of the module docstring."""
    sizes = list(_WINDOWS)
    while sizes and effort.left > 0:
        bytes_at = profile(jobs, order)
        peak = max(bytes_at)
        at = bytes_at.index(peak)
        begin, end = max(0, at - sizes[0] // 2), min(len(order), at + sizes[0] // 2 + 1)
        inside = window(jobs, order, begin, end)
        better = _below(packed(inside), peak - 1, effort)
        if better is None:
            sizes.pop(0)
            continue
        order = [*order[:begin], *[order[begin + job] for job in better], *order[end:]]
    return order


def _below(arrays: Packed, limit: int, effort: Effort) -> tuple[int, ...] | None:
    found = search_ideals(arrays, limit, _WINDOW_WIDTH, effort.left)
    effort.spend(found.work, is_better=found.order is not None)
    return found.order
