"""Which order of the ops has the least peak? Exact where that can be had, a local optimum beyond.

    1. bound       what is unavoidable in every order (`unavoidable`): an order that reaches it is a best one
    2. segments    between ops that every other op precedes or follows, each segment is ordered on its own; the worst
                   segment sets the peak, so it is lowered until it cannot be, or another one is the worst
    3. bisection   ask `ideals` for an order of the segment below a limit; halve the range between the bound and the
                   best known; where the search was exhaustive, a "no" is a proof and raises the bound
    4. widths      from a narrow beam to a wide one, each asked first whether it finds anything better at all
    5. windows     around the op at the peak, the ops of a window are ordered again with all others in their places

The result is never worse than the order it starts from. It is deterministic: an effort is an amount of work, cells of
arrays that a search may touch, so a slower machine takes longer and finds the same. The search ends sooner where as
much work again as led to the best order, and at least a quarter of all, has found nothing better.
"""

from dataclasses import dataclass

from outgrow.planning.order.ideals import Found, Packed, packed, search_ideals
from outgrow.planning.order.jobs import Jobs, live_bytes_in, segments, window
from outgrow.planning.order.unavoidable import unavoidable_bytes

_CELLS_PER_SECOND = 300_000_000
_CELLS_AT_ONCE = 20_000_000
_WIDTHS = (4, 32, 256, 2048, 16384)
_WINDOWS = (24, 96, 384)
_WINDOW_WIDTH = 256
_PATIENCE = 1 / 4
"""A search that has found nothing better ends after this share of all work."""


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
        return min(self.limit, self.best + max(self.best, int(self.limit * _PATIENCE))) - self.done

    def spend(self, work: int, *, is_better: bool) -> None:
        """Note work that was done, and whether it found something."""
        self.done += work
        if is_better:
            self.best = self.done


def lowered(jobs: Jobs, order: list[int], effort: Effort) -> list[int]:
    """Return an order whose peak is at most that of `order`: segments first, then windows.

    >>> from outgrow.ir.text import parse_graph
    >>> from outgrow.planning.order.jobs import jobs_of
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
    >>> lowered(jobs_of(graph, {}), [0, 1, 2, 3], Effort.of(10.0))
    [0, 2, 1, 3]
    """
    bytes_at = live_bytes_in(jobs, order)
    best = order
    if bytes_at and max(bytes_at) > unavoidable_bytes(jobs):
        best = _by_segments(jobs, order, effort)
        best = _by_windows(jobs, best, effort)
    return best


def _by_segments(jobs: Jobs, order: list[int], effort: Effort) -> list[int]:
    """Lower the worst segment until it cannot be lowered; 2 of the module docstring."""
    parts = {part: order[part.start : part.stop] for part in segments(jobs)}
    tried: set[range] = set()
    while effort.left > 0:
        whole = [job for part in parts.values() for job in part]
        bytes_at = live_bytes_in(jobs, whole)
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
    peak = max(live_bytes_in(jobs, range(len(jobs))))
    most = max(1, _CELLS_AT_ONCE // (2 * len(jobs) + len(jobs.sizes)))
    for width in dict.fromkeys(min(width, most) for width in _WIDTHS):
        low, limit = proved, peak - 1
        while low < peak and effort.left > 0:
            found = _asked(arrays, limit, width, effort)
            if found.order is None:
                if found.is_exhaustive:
                    proved = max(proved, limit + 1)
                low = limit + 1
            else:
                best, peak = found.order, found.peak_bytes
            limit = (low + peak) // 2
    return best


def _by_windows(jobs: Jobs, order: list[int], effort: Effort) -> list[int]:
    """Lower the op at the peak by ordering a window around it, until no window helps; 5 of the module docstring."""
    sizes = list(_WINDOWS)
    while sizes and effort.left > 0:
        bytes_at = live_bytes_in(jobs, order)
        peak = max(bytes_at)
        at = bytes_at.index(peak)
        begin, end = max(0, at - sizes[0] // 2), min(len(order), at + sizes[0] // 2 + 1)
        inside = window(jobs, order, begin, end)
        better = _asked(packed(inside), peak - 1, _WINDOW_WIDTH, effort).order
        if better is None:
            sizes.pop(0)
            continue
        order = [*order[:begin], *[order[begin + job] for job in better], *order[end:]]
    return order


def _asked(arrays: Packed, limit: int, width: int, effort: Effort) -> Found:
    """Ask for an order below a limit, and note the effort."""
    found = search_ideals(arrays, limit, width, effort.left)
    effort.spend(found.work, is_better=found.order is not None)
    return found
