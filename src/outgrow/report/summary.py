"""What does one look at first? The figures of a plan and of its last step, as a table and as JSON.

The fields are the keys of the JSON object of the command line, in its order.
"""

import json
from dataclasses import asdict, dataclass

from outgrow.analysis.timeline import Trace
from outgrow.plan import Estimate
from outgrow.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """What the last step took: timeline peak, bytes of the process above its baseline, seconds, all losses."""

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
    """The figures of one plan: predicted | simulated | measured, side by side."""

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
    seconds_recomputed: float
    ops: int
    planning_seconds: float

    def to_json(self) -> str:
        """Return the object as JSON text."""
        return json.dumps(asdict(self), indent=2)
