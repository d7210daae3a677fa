"""Do the deepest steps train here, in a quarter of what they take in core?

    python benchmarks/deep.py [--only TEXT] [--resume]

Each training is a process of its own: `eager`, the plain loop, says what the step takes in core, and its losses and a
digest of parameters, buffers and optimizer state are compared with those of the same steps within a quarter of it.
Memory is the high water of the process above its baseline, in any step. Seconds of a step are the median of the last
three: the first ones of ours plan, and what they plan is with costs that they measure.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from main_job import digest
from rows import Goal, Row, of_all, spelled, told_by_a_process, workload_function, write_rows

STEPS = 6
SETTLED = 3
SHARE = 4
LIMIT_SECONDS = 3 * 60 * 60


@dataclass(frozen=True)
class Training:
    """A row: a workload, and how it is asked for."""

    workload: str
    settings: Mapping[str, object]

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.workload.split(':')[1]}, {spelled(self.settings)}"


DEEP = (
    Training("resnet.py:resnet", {"depth": 1001, "batch": 24, "size": 128}),
    Training("nmt.py:attention_nmt", {"steps": 400, "batch": 16, "units": 256, "vocabulary": 8000}),
)


def measured(item: Training) -> Row:
    """Train in core, then within a share of what that took."""
    eager = ended(item, 0)
    budget = max(eager["process_bytes"]) // SHARE
    ours = ended(item, budget)
    return {
        **asdict(item),
        "in_core_bytes": max(eager["process_bytes"]),
        "budget_bytes": budget,
        "bitwise": all(eager[key] == ours[key] for key in ("losses", "digest")),
        "process_bytes": max(ours["process_bytes"]),
        "ops": ours["ops"],
        "first_call_seconds": ours["seconds"][0],
        "all_process_bytes": ours["process_bytes"],
        "all_seconds": ours["seconds"],
        "step_seconds": settled(ours["seconds"]),
        "eager_seconds": settled(eager["seconds"]),
    }


def settled(seconds: Sequence[float]) -> float:
    """Return the seconds of a step once none plans any more."""
    return median(seconds[-SETTLED:])


def ended(item: Training, budget: int, kernels: str = "eager") -> dict[str, Any]:
    """Train in a process of its own, within a budget (0: the plain loop), by some kernels; return what it says."""
    request = (item.workload, item.settings, budget, kernels)
    return told_by_a_process(__file__, *request, limit_seconds=LIMIT_SECONDS)


def served(workload: str, settings: Mapping[str, object], budget: int, kernels: str) -> dict[str, Any]:
    """Take the steps, within a budget if there is one, and say what they left and took."""
    from outgrow.frontends.compile import compile_workload
    from outgrow.frontends.preparing.warmup import warm_up
    from outgrow.frontends.workloads.loading import built
    from outgrow.runtime.process import high_water_bytes, reset_high_water

    function = workload_function(workload)
    baseline = warm_up(kernels)
    made = built(function, settings)
    options: dict[str, Any] = {"memory_budget": budget, "kernels": kernels, "baseline_bytes": baseline}
    step = compile_workload(made, **options) if budget else None
    losses: list[str] = []
    seconds: list[float] = []
    peaks: list[int] = []
    for number in range(STEPS):
        reset_high_water()
        begin = time.perf_counter()
        loss = (step or made.step)(*made.batches[number % len(made.batches)])
        losses.append(float(loss).hex())
        seconds.append(time.perf_counter() - begin)
        peaks.append(step.process_bytes if step else high_water_bytes() - baseline)
    return {
        "losses": losses,
        "digest": digest(made.model, made.optimizer),
        "process_bytes": peaks,
        "seconds": seconds,
        "ops": len(step.captured.ops) if step else 0,
    }


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of every row."""
    return [
        of_all("trains in a quarter, bit for bit", "all", [row["bitwise"] for row in rows]),
        of_all("the budget is kept", "all", [row["process_bytes"] <= row["budget_bytes"] for row in rows]),
    ]


def told(row: Row) -> str:
    """Return a row in one line."""
    taken, budget = row["process_bytes"] >> 20, row["budget_bytes"] >> 20
    return (
        f"bitwise {row['bitwise']}, {taken} of {budget} MiB, {row['step_seconds'] / row['eager_seconds']:.2f} x eager"
    )


if __name__ == "__main__":
    write_rows("deep", DEEP, measured, told, served=served)
