"""What do the parts of a loop cost? Those that `torch.compile` found, below each budget that they share.

A part is planned with its forward and its backward pass, for each kind of inputs that it was called with.
"""

from dataclasses import dataclass

from outgrow.plan import Estimate
from outgrow.report.columns import aligned, bytes_or_none, counted, format_shapes, seconds_or_none
from outgrow.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class PartReport:
    """One part: where it begins in the user's code, shapes of its inputs except state, ops, runs, and its plan.

    Bytes and seconds are those of both passes, as captured and as planned; `left_bytes` is what the plan leaves to
    everything else while the part waits between the two.
    """

    begins: str
    shapes: tuple[tuple[int, ...], ...]
    ops: int
    runs: int
    in_core: Estimate
    planned: Estimate
    left_bytes: int
    bytes_swapped: int
    seconds_recomputed: float


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """The parts below one budget on one device, and the most that was taken there so far."""

    budget_bytes: int
    machine: str
    taken_bytes: int
    parts: tuple[PartReport, ...]

    def __str__(self) -> str:
        """The budget, then one line a part."""
        count = counted(self.parts, "part", "parts")
        budget, taken = format_bytes(self.budget_bytes), format_bytes(self.taken_bytes)
        title = f"{count} within {budget} on {self.machine}, of which at most {taken} were taken"
        return "\n".join((title, "", aligned([_HEADER, *map(_row, self.parts)], numbers_from=2)))


@dataclass(frozen=True, slots=True)
class PartsReport:
    """What runs by parts, below each budget; printed, tables."""

    budgets: tuple[BudgetReport, ...]

    def __str__(self) -> str:
        """One table for each budget."""
        return "\n\n".join(map(str, self.budgets)) or _NONE


_NONE = (
    "No part has run. Call what torch.compile returned. If that was done, Dynamo found nothing to compile: it gives up "
    "on a function that breaks inside of a loop, which then runs as it is, and often on one that calls nn.LSTM, nn.GRU "
    "or nn.RNN, unless torch._dynamo.config.allow_rnn is True. TORCH_LOGS=graph_breaks tells where. It never sees what "
    "is called below the model (model.encoder(x)): compile the encoder itself."
)
_HEADER = (
    "part", "inputs", "ops", "runs", "in core", "seconds", "planned", "seconds", "to others", "swapped", "recomputed"
)  # fmt: skip


def _row(part: PartReport) -> tuple[str, ...]:
    return (
        part.begins,
        format_shapes(part.shapes),
        str(part.ops),
        str(part.runs),
        format_bytes(part.in_core.peak_bytes),
        format_seconds(part.in_core.seconds),
        format_bytes(part.planned.peak_bytes),
        format_seconds(part.planned.seconds),
        format_bytes(part.left_bytes),
        bytes_or_none(part.bytes_swapped),
        seconds_or_none(part.seconds_recomputed),
    )
