"""What does one look at first? The figures of a plan and of its last step, as a table and as JSON.

The fields are the keys of the JSON object of the command line, in its order.
"""

import json
import math
from dataclasses import asdict, dataclass

from outgrow.analysis.sinking import sunk
from outgrow.analysis.timeline import Trace
from outgrow.plan import Estimate
from outgrow.planning.planned import Planned
from outgrow.report.columns import aligned, bytes_or_none, seconds_or_none
from outgrow.units import format_bytes, format_seconds

SECONDS_A_DAY = 24 * 60 * 60


_FLOOR = "the smallest budget with which a new process has a plan"
_FLOOR_AT_MOST = "or less: under this budget there is a plan"
_FLOOR_UNSEEN = "an estimate: a run shows what its process takes"
_AS_WRITTEN = "not planned: it fits twice over, so your function itself was called"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the last step took: timeline peak, process bytes above the baseline, seconds; and the losses so far."""

    peak_bytes: int
    process_bytes: int
    seconds: float
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Traces:
    """The same step as captured, as planned, and as it ran last."""

    in_core: Trace
    simulated: Trace
    measured: Trace | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one plan: predicted | simulated | measured, side by side.

    Where the last step `ran_as_written` it was the user's own function that was called, and the plan was not used.
    """

    workload: str
    machine: str
    planner: str
    budget_bytes: int
    floor_bytes: int
    in_core_peak_bytes: int
    bound_seconds: float
    in_core_seconds: float
    predicted: Estimate
    simulated: Estimate
    measured: Measured | None
    overhead_bytes: int
    bytes_swapped: int
    bytes_written: int
    seconds_recomputed: float
    ops: int
    planning_seconds: float
    bytes_below: int = 0
    ran_as_written: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of one step: as measured, or as predicted before it has run."""
        return self.measured.seconds if self.measured else self.predicted.seconds

    @property
    def distance(self) -> float:
        """Predicted seconds above the bound, as a share of the bound: at 0 no plan of its scope is quicker."""
        return self.predicted.seconds / self.bound_seconds - 1 if self.bound_seconds else 0.0

    @property
    def speed(self) -> float:
        """In-core seconds / predicted seconds, both by the same costs: 1 is no slower than in core."""
        return self.in_core_seconds / self.predicted.seconds if self.predicted.seconds else 1.0

    @property
    def measured_speed(self) -> float | None:
        """Predicted in-core seconds / measured seconds; None before a step has run."""
        return self.in_core_seconds / self.measured.seconds if self.measured and self.measured.seconds else None

    @property
    def way(self) -> str:
        """How the step was planned, in words."""
        return _AS_WRITTEN if self.ran_as_written else f"planned by {self.planner}"

    @property
    def slowdown(self) -> float:
        """How many times the seconds in core are predicted: 1 is no slower than in core."""
        return 1 / self.speed if self.speed else math.inf

    @property
    def written_a_day_bytes(self) -> float:
        """Bytes that a day of such steps writes to the next tier, which wears a disk out."""
        return self.bytes_written / self.seconds * SECONDS_A_DAY if self.seconds else 0.0

    @property
    def share_recomputed(self) -> float:
        """Seconds of arithmetic done again, as a share of the step in core."""
        return self.seconds_recomputed / self.in_core_seconds if self.in_core_seconds else 0.0

    def to_data(self) -> dict[str, object]:
        """Return the object of the command line; a loss that is not a number is None."""
        return {key: without_nan(value) for key, value in asdict(self).items()}

    def to_json(self) -> str:
        """Return the object as JSON text; a loss that is not a number is null."""
        return json.dumps(self.to_data(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        """The table for people: predicted | simulated | measured, then the figures of the plan."""
        title = f"{self.workload or 'step'}: {self.ops} ops, {self.way}"
        machine = f"machine     {self.machine}"
        return "\n".join((title, "", aligned(self.estimates(), numbers_from=1), "", aligned(self.figures()), machine))

    def estimates(self) -> list[tuple[str, ...]]:
        """Return the rows predicted | simulated | measured, below their header.

        Where the user's own function ran, `measured` stands alone: what it held of tensors is not known, but what the
        process took is.
        """
        measured, process = self.measured, list[tuple[str, ...]]()
        if self.ran_as_written and measured:
            taken = ("process", format_bytes(measured.process_bytes))
            return [("", "measured"), taken, ("step", format_seconds(measured.seconds))]
        if measured:
            expected = format_bytes(self.predicted.peak_bytes + self.overhead_bytes)
            process = [("process", expected, "", format_bytes(measured.process_bytes))]
        shown = (self.predicted, self.simulated, measured)
        peaks = [format_bytes(item.peak_bytes) if item else "-" for item in shown]
        seconds = [format_seconds(item.seconds) if item else "-" for item in shown]
        return [("", "predicted", "simulated", "measured"), ("peak", *peaks), *process, ("step", *seconds)]

    def figures(self) -> list[tuple[str, str, str]]:
        """Return name, figure and meaning of everything else."""
        is_arithmetic = self.bound_seconds == self.in_core_seconds
        scope = (
            "the arithmetic in core: no plan" if is_arithmetic else "no plan in the captured order, or the lean one,"
        )
        at_most = _FLOOR_AT_MOST if self.floor_bytes >= self.budget_bytes else _FLOOR
        floor = ("floor", format_bytes(self.floor_bytes), at_most if self.measured else _FLOOR_UNSEEN)
        in_core, in_core_seconds = format_bytes(self.in_core_peak_bytes), format_seconds(self.in_core_seconds)
        planning = ("planning", format_seconds(self.planning_seconds), "")
        if self.ran_as_written:
            in_core = ("in core", in_core, f"the peak of its tensors, predicted; in {in_core_seconds}, predicted")
            return [("budget", format_bytes(self.budget_bytes), ""), floor, in_core, planning]
        a_day = format_bytes(int(self.written_a_day_bytes)) if math.isfinite(self.written_a_day_bytes) else "-"
        written = ("written", format_bytes(self.bytes_written), f"of these, to the next tier: {a_day} a day")
        below = ("below", format_bytes(self.bytes_below), "of those moved: through the host, to a disk")
        return [
            ("budget", format_bytes(self.budget_bytes), f"with {format_bytes(self.overhead_bytes)} of overhead"),
            floor,
            ("in core", in_core, f"in {in_core_seconds}"),
            (
                "bound",
                format_seconds(self.bound_seconds),
                f"{scope} is below, by the costs when it was made; this: {self.distance:+z.1%}",
            ),
            ("speed", f"{self.speed:.3f}", "of the step in core, predicted"),
            ("swapped", bytes_or_none(self.bytes_swapped), "bytes moved in a step, both ways"),
            *([written] if self.bytes_written else []),
            *([below] if self.bytes_below else []),
            ("recomputed", seconds_or_none(self.seconds_recomputed), "arithmetic done again in a step"),
            planning,
        ]


def without_nan(item: object) -> object:
    """Return JSON data in which numbers that JSON cannot express (NaN, infinity) are null."""
    match item:
        case float() if not math.isfinite(item):
            return None
        case dict():
            return {key: without_nan(value) for key, value in item.items()}
        case list() | tuple():
            return [without_nan(value) for value in item]
        case _:
            return item


def summary_of(
    planned: Planned, workload: str, measured: Measured | None = None, simulated: Trace | None = None
) -> Summary:
    """Return the figures of the plan, beside what was measured."""
    replayed, below = simulated or planned.simulated, sunk(planned.derived, planned.machine)
    return Summary(
        workload=workload,
        machine=planned.machine.name,
        planner=planned.plan.planner,
        budget_bytes=planned.plan.budget.limit_bytes,
        floor_bytes=planned.plan.floor_bytes,
        in_core_peak_bytes=planned.plan.in_core.peak_bytes,
        bound_seconds=planned.plan.bound_seconds,
        in_core_seconds=planned.plan.in_core.seconds,
        predicted=planned.plan.predicted,
        simulated=Estimate(replayed.peak_bytes, replayed.seconds),
        measured=measured,
        overhead_bytes=planned.plan.budget.overhead_bytes,
        bytes_swapped=planned.simulated.bytes_in + planned.simulated.bytes_out,
        bytes_written=planned.simulated.bytes_out,
        seconds_recomputed=planned.seconds_recomputed,
        ops=len(planned.graph.ops),
        planning_seconds=planned.plan.planning_seconds,
        bytes_below=sum(span.size_bytes for span in planned.simulated.spans if span.label in below),
    )
