"""Does the simulator say what this machine does? Predicted, simulated and measured seconds of real steps.

    python benchmarks/simulator.py [--only TEXT] [--resume]

Each row is a step under a budget that is a share of what the step takes in core, run in a process of its own, the first
of them to observe what ops cost here. After `WARM_STEPS` steps, when the plan is made of observed costs and kept, the
next `TIMED_STEPS` are compared with

    predicted    what the plan said when it was made, from the costs of an earlier moment
    simulated    the same plan replayed with the seconds that the ops took in that very step

Goal: simulated / measured between 0.95 and 1.05, as a median over the steps of a row. `predicted` also holds how much
the speed of the machine drifts.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from main_job import ROOT
from rows import Goal, Row, spelled, told_by_a_process, write_rows

WARM_STEPS, TIMED_STEPS = 3, 7
LEAST, MOST = 0.95, 1.05


@dataclass(frozen=True)
class Trial:
    """A workload, given by its file and function below the root, and the share of its memory in core that it gets."""

    workload: str
    settings: Mapping[str, object]
    share: float

    @property
    def name(self) -> str:
        """Workload, settings and share."""
        return (
            f"{self.workload.partition(':')[0].rpartition('/')[2]} {spelled(self.settings)}, {self.share:.2f} in core"
        )


_BRAIN = "examples/brain_unet3d.py:workload"
_FOLDER = "benchmarks/workloads"
TRIALS = (
    *(Trial(_BRAIN, {"size": 96}, share) for share in (0.75, 0.5, 1 / 3)),
    Trial(f"{_FOLDER}/resnet.py:resnet50", {"batch": 16, "size": 128}, 0.5),
    Trial(f"{_FOLDER}/gpt2.py:gpt2", {"batch": 2, "length": 128}, 0.75),
    Trial(f"{_FOLDER}/lstm.py:lstm", {"batch": 20, "units": 650, "length": 20}, 0.75),
)


def measured(trial: Trial) -> Row:
    """Return the seconds of a trial, from a process that runs it."""
    cache = Path.home() / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": "1", "XDG_CACHE_HOME": folder}
        steps = told_by_a_process(__file__, trial.workload, trial.settings, trial.share, environment=environment)
    timed = steps[WARM_STEPS:]
    ratios = {kind: [_seconds(step, kind) / _seconds(step, "measured") for step in timed] for kind in KINDS}
    return {
        "workload": trial.workload,
        "settings": dict(trial.settings),
        "share": trial.share,
        "budget_bytes": timed[-1]["budget_bytes"],
        "ops": timed[-1]["ops"],
        **{f"{kind}_seconds": median(_seconds(step, kind) for step in timed) for kind in (*KINDS, "measured")},
        **{f"{kind}_over_measured": median(found) for kind, found in ratios.items()},
        "simulated_over_measured_of_each": ratios["simulated"],
        "bytes_swapped": timed[-1]["bytes_swapped"],
        "seconds_recomputed": timed[-1]["seconds_recomputed"],
    }


KINDS = ("predicted", "simulated")


def _seconds(step: Row, kind: str) -> float:
    return step[kind]["seconds"]


def served(workload: str, settings: Mapping[str, object], share: float) -> list[Row]:
    """Run the steps of one trial and return their summaries."""
    from outgrow.frontends.compile import compile_workload
    from outgrow.frontends.preparing.ahead import known_machine, problem_of
    from outgrow.frontends.preparing.warmup import warm_up
    from outgrow.frontends.workloads.loading import built, load_workload_function
    from outgrow.frontends.workloads.steps import capture_workload
    from outgrow.planning.order.lean import Orders
    from outgrow.planning.pareto import range_of

    function = load_workload_function(str(ROOT / workload))
    baseline = warm_up()
    floor, in_core = range_of(Orders(problem_of(capture_workload(function, settings), known_machine())))
    budget = max(int(share * in_core), floor)
    made = built(function, settings)
    batch = tuple(made.batches[0])
    step = compile_workload(made, memory_budget=budget, baseline_bytes=baseline)
    steps: list[Row] = []
    for _ in range(WARM_STEPS + TIMED_STEPS):
        step(*batch)
        steps.append(step.plan.to_data())
    step.close()
    return steps


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goal, the limits, what was found and whether it is met."""
    if not rows:
        return []
    found = [row["simulated_over_measured"] for row in rows]
    is_met = min(found) >= LEAST and max(found) <= MOST
    spread = f"{min(found):.3f} to {max(found):.3f}"
    return [("simulated / measured seconds, medians of the rows", f"{LEAST} to {MOST}", spread, is_met)]


def told(row: Row) -> str:
    """Return a row in one line."""
    return (
        f"predicted {row['predicted_seconds']:.3f} s, simulated {row['simulated_seconds']:.3f} s, measured "
        f"{row['measured_seconds']:.3f} s, simulated / measured {row['simulated_over_measured']:.3f}"
    )


if __name__ == "__main__":
    write_rows("simulator", TRIALS, measured, told, served=served)
