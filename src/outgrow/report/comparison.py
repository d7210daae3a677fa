"""Which planner does best? One row each, side by side; one that finds no plan has a row that says why.

planner   peak  step  x in core  moved  recomputed  planning  over bound
olla      no plan below 4.00 GiB: it chooses the order alone (convolution_backward_3)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outgrow.errors import Infeasible
from outgrow.report.columns import aligned, bytes_or_none
from outgrow.report.summary import Summary
from outgrow.units import format_bytes, format_seconds

_HEADER = ("planner", "peak", "step", "x in core", "moved", "recomputed", "planning", "over bound")
_BOUND = "no plan in the captured order, or in the lean one, is quicker."


@dataclass(frozen=True, slots=True)
class Row:
    """What one planner found: the figures of its plan, with notes, or why there is none."""

    planner: str
    found: Summary | Infeasible
    notes: tuple[str, ...] = ()

    def to_data(self) -> dict[str, object]:
        """Return the JSON object of the row.

        It is the summary's, with speed, slowdown, distance, share_recomputed and notes; or planner, refusal, the bytes
        that the planner needs, the op that sets them, and why.
        """
        found = self.found
        if isinstance(found, Infeasible):
            needs = {"needs_bytes": found.floor_bytes, "culprit": found.culprit, "because": found.because}
            return {"planner": self.planner, "infeasible": str(found), **needs}
        return {
            **found.to_data(),
            "speed": found.speed,
            "slowdown": found.slowdown,
            "distance": found.distance,
            "share_recomputed": found.share_recomputed,
            "notes": list(self.notes),
        }

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table; of a planner without a plan, only the first."""
        found = self.found
        if isinstance(found, Infeasible):
            return (self.planner, *("" for _ in _HEADER[1:]))
        repeated = f"{format_seconds(found.seconds_recomputed)} ({found.share_recomputed:.1%})"
        return (
            self.planner,
            format_bytes(found.predicted.peak_bytes),
            format_seconds(found.predicted.seconds),
            f"{found.slowdown:.3f}",
            bytes_or_none(found.bytes_swapped),
            repeated if found.seconds_recomputed else "none",
            format_seconds(found.planning_seconds),
            f"{found.distance:.1%}",
        )


def comparison(workload: str, budget_bytes: int, rows: Sequence[Row]) -> str:
    """Return the table of all planners, predicted, and below it the bound and the notes.

    Where no planner has a plan, rows say below which budget alone: why is in the refusal.
    """
    title = f"{workload} under {format_bytes(budget_bytes)}, predicted"
    header, *lines = aligned([_HEADER, *(row.cells() for row in rows)], numbers_from=1).splitlines()
    width = max(len(name) for name in (_HEADER[0], *(row.planner for row in rows)))
    bounds = [row.found.bound_seconds for row in rows if isinstance(row.found, Summary)]
    told = [_refused(row, width, briefly=not bounds) or line for row, line in zip(rows, lines, strict=True)]
    notes = [note for row in rows for note in row.notes]
    if bounds:  # one for all planners that have a plan
        told += ["", f"The bound is {format_seconds(bounds[0])}: {_BOUND}"]
    return "\n".join((title, "", header, *told, *notes))


def _refused(row: Row, width: int, *, briefly: bool) -> str:
    """The row of a planner without a plan; empty if it has one."""
    if not isinstance(row.found, Infeasible):
        return ""
    why = "" if briefly else f": {row.found.because} ({row.found.culprit})"
    return f"{row.planner.ljust(width)}  no plan below {format_bytes(row.found.floor_bytes)}{why}"
