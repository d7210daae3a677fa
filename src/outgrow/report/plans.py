"""How many plans does a step have, and what did they cost? One for each kind of batch that it was called with."""

from dataclasses import dataclass

from outgrow.report.columns import aligned, counted, format_shapes
from outgrow.units import format_seconds


@dataclass(frozen=True, slots=True)
class PlanReport:
    """One plan: shapes of the batch, ops, whether the step runs as written, calls, seconds to capture and plan."""

    shapes: tuple[tuple[int, ...], ...]
    ops: int
    runs_as_written: bool
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PlansReport:
    """The plans that a step has now, and how many it had to forget; printed, a table."""

    plans: tuple[PlanReport, ...]
    forgotten: int = 0

    @property
    def seconds(self) -> float:
        """What capturing and planning took, for all plans that there are."""
        return sum(plan.seconds for plan in self.plans)

    def __str__(self) -> str:
        """One line a plan, then the sums."""
        header = ("batch", "ops", "runs", "calls", "made in")
        rows = [
            (
                format_shapes(plan.shapes),
                str(plan.ops),
                "as written" if plan.runs_as_written else "planned",
                str(plan.calls),
                format_seconds(plan.seconds),
            )
            for plan in self.plans
        ]
        return "\n".join((aligned([header, *rows], numbers_from=1), "", self._sums()))

    def _sums(self) -> str:
        count = counted(self.plans, "plan", "plans")
        forgotten = f"; {self.forgotten} forgotten, to be made again when they are needed" if self.forgotten else ""
        return f"{count}, made in {format_seconds(self.seconds)}{forgotten}"
