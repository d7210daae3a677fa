"""How long does planning take, and how much memory, for steps of thousands of ops? All without running them.

    python benchmarks/planning_time.py [--out benchmarks/results/planning_time.json]

Each row is a process of its own, warm as one that has planned before: what is compiled has been loaded. The budgets are
such that neither swapping nor recomputing alone is enough. Seconds are of the wall clock, on a machine that others may
use too; processor seconds stand beside those of planning. The bound is proved apart, since it may coarsen what it
looks at. Memory is the high water of the process above its imports and its warm-up.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from main_job import setting
from rows import RESULTS, told_by_a_process, workload_function


@dataclass(frozen=True)
class Cell:
    """A workload under a share of its peak in core, and the seconds in which it shall be planned."""

    workload: str
    settings: Mapping[str, object]
    machine: str
    share: float
    goal_seconds: float


CELLS = {
    "gpt2": Cell("gpt2.py:gpt2", {"size": "small", "batch": 16}, "v100-pcie3", 0.55, 10.0),
    "resnet1202": Cell("resnet.py:resnet", {"depth": 1202, "batch": 32}, "v100-pcie3", 0.25, 60.0),
}
GOAL_BOUND_SECONDS = 60.0
GOAL_MEMORY_BYTES = 2 << 30


def measured(cell: Cell) -> dict[str, object]:
    """Return the figures of one cell, planned in this process."""
    from outgrow.analysis.liveness import peak_bytes
    from outgrow.frontends.preparing.ahead import KnownMachine, problem_of
    from outgrow.frontends.preparing.machines import described_machine
    from outgrow.frontends.preparing.warmup import warm_up
    from outgrow.frontends.workloads.steps import capture_workload
    from outgrow.plan import Budget
    from outgrow.planning.order.lean import Orders, least_seconds
    from outgrow.planning.planner import planned
    from outgrow.rewriting.derive import verified
    from outgrow.runtime.process import high_water_bytes

    found = workload_function(cell.workload)
    baseline_bytes = warm_up()
    begin = time.perf_counter()
    captured = capture_workload(found, cell.settings)
    capture_seconds = time.perf_counter() - begin
    captured_bytes = high_water_bytes() - baseline_bytes
    begin = time.perf_counter()
    problem = problem_of(captured, KnownMachine(described_machine(cell.machine)))
    cost_seconds = time.perf_counter() - begin
    graph = problem.graph
    in_core_bytes = peak_bytes(graph, problem.workspace)
    problem = replace(problem, budget=Budget(int(cell.share * in_core_bytes)))
    begin, begin_processor = time.perf_counter(), time.process_time()
    plan = planned(problem, prove=False)
    planning_seconds = time.perf_counter() - begin
    planning_processor_seconds = time.process_time() - begin_processor
    begin, begin_processor = time.perf_counter(), time.process_time()
    verified(graph, plan.plan, plan.stages, problem.workspace)
    derivation_seconds = time.perf_counter() - begin
    derivation_processor_seconds = time.process_time() - begin_processor
    planned_bytes = high_water_bytes() - baseline_bytes
    begin = time.perf_counter()
    bound = least_seconds(problem, Orders(problem))
    in_core = plan.in_core.seconds
    return {
        **asdict(cell),
        "ops": len(graph.ops),
        "decisions": len(plan.plan.decisions),
        "in_core_peak_bytes": in_core_bytes,
        "capture_seconds": capture_seconds,
        "cost_seconds": cost_seconds,
        "planning_seconds": planning_seconds,
        "planning_processor_seconds": planning_processor_seconds,
        "derivation_seconds": derivation_seconds,
        "derivation_processor_seconds": derivation_processor_seconds,
        "bound_seconds": time.perf_counter() - begin,
        "capture_peak_mib": captured_bytes / 2**20,
        "planning_peak_mib": planned_bytes / 2**20,
        "bound_peak_mib": (high_water_bytes() - baseline_bytes) / 2**20,
        "speed": in_core / plan.simulated.seconds,
        "bound_speed": in_core / bound,
    }


def goals(row: Mapping[str, float]) -> dict[str, dict[str, object]]:
    """Return each goal of a row with what was measured."""
    spent = row["planning_seconds"] + row["derivation_seconds"]
    spent_processor = row["planning_processor_seconds"] + row["derivation_processor_seconds"]
    return {
        "seconds to plan and derive": {"goal": f"<= {row['goal_seconds']:g}", "found": spent},
        "processor seconds to plan and derive": {"goal": f"<= {row['goal_seconds']:g}", "found": spent_processor},
        "seconds of the bound": {"goal": f"<= {GOAL_BOUND_SECONDS:g}", "found": row["bound_seconds"]},
        "MiB of the process": {"goal": f"<= {GOAL_MEMORY_BYTES >> 20}", "found": row["bound_peak_mib"]},
    }


def main() -> None:
    """Measure every cell in a process of its own and write the table; or measure one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=RESULTS / "planning_time.json")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        (name,) = options.serve
        print(json.dumps(measured(CELLS[name])))
        return
    rows: dict[str, dict[str, object]] = {}
    for name in CELLS:
        row = told_by_a_process(__file__, name)
        rows[name] = {**row, "goals": goals(row)}
        print(name, json.dumps(rows[name]["goals"], indent=2), flush=True)
        found = {**setting("python benchmarks/planning_time.py"), "rows": rows}
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
