"""Which planner does best? One row each, side by side; one that finds no plan has a row that says so."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from outgrow.report.columns import aligned
from outgrow.report.summary import Summary
from outgrow.units import format_bytes, format_seconds

_HEADER = ("planner", "peak", "step", "speed", "moved", "recomputed", "planning", "over bound")


@dataclass(frozen=True, slots=True)
class Row:
    """What one planner found: the figures of its plan, or why there is none."""

    planner: str
    summary: Summary | None
    refusal: str = ""

    def to_data(self) -> dict[str, object]:
        """Return the JSON object of the row: the summary's keys with speed and distance, or planner and
        refusal.
        """
        if self.summary is None:
            return {"planner": self.planner, "infeasible": self.refusal}
        derived = {"speed": self.summary.speed, "distance": self.summary.distance}
        return {**json.loads(self.summary.to_json()), **derived}

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the printed table."""
        found = self.summary
        if found is None:
            return (self.planner, "no plan", *("-" for _ in _HEADER[2:]))
        return (
            self.planner,
            format_bytes(found.predicted.peak_bytes),
            format_seconds(found.predicted.seconds),
            f"{found.speed:.3f}",
            format_bytes(found.bytes_swapped) if found.bytes_swapped else "none",
            format_seconds(found.seconds_recomputed) if found.seconds_recomputed else "none",
            format_seconds(found.planning_seconds),
            f"{found.distance:.1%}",
        )


def comparison(workload: str, budget_bytes: int, rows: Sequence[Row]) -> str:
    """Return the table of all planners, predicted, and below it the reason of each that found no plan."""
    title = f"{workload} under {format_bytes(budget_bytes)}, predicted"
    table = aligned([_HEADER, *(row.cells() for row in rows)], numbers_from=1)
    reasons = [f"{row.planner}: {row.refusal}" for row in rows if row.summary is None]
    return "\n\n".join((title, table, *reasons))
