"""What do papers claim, and what is planned here for the same workload on the same machine? All in simulation.

    python benchmarks/published.py [--only TEXT] [--out benchmarks/results/published.json]

Each cell is a workload of `benchmarks/workloads`, a machine and a budget. The table gives the speed of our plan
(seconds of the arithmetic over seconds of the plan), that of the best published planner on the same graph, and what no
plan can beat (`planning.bound`).
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from main_job import ROOT, setting

from outgrow.errors import Infeasible
from outgrow.frontends.loading import load_workload_function
from outgrow.frontends.machines import described_machine
from outgrow.frontends.prepare import KnownMachine, capture_workload, problem_of
from outgrow.ir.machine import Device, Link, Machine
from outgrow.plan import Budget, Plan
from outgrow.planning.planner import PLANNERS, make_plan
from outgrow.planning.problem import Problem

GB = 1_000_000_000
FIRST_STUDY = Machine(
    "8.4 TFLOP/s, 800 GB/s, 12 GB/s",
    Device("of the first study", 8.4e12, 8e11, needs_workspace=False),
    Link(12e9, 12e9),
)
"""The machine of the project's first study of this question, whose figures are the goals of some cells."""


@dataclass(frozen=True)
class Cell:
    """A workload under a budget, what is claimed for it, and the speed that we want to reach."""

    workload: str
    settings: Mapping[str, object]
    machine: str
    budget_bytes: int
    claim: str
    goal: float


def _resnet(batch: int, machine: str, gigabytes: float, claim: str, goal: float) -> Cell:
    return Cell("resnet.py:resnet50", {"batch": batch}, machine, int(gigabytes * GB), claim, goal)


CELLS = (
    _resnet(256, "first study", 12, "first study: 0.97", 0.975),
    _resnet(256, "first study", 6, "first study: 0.92", 0.94),
    _resnet(256, "first study", 4, "first study: 0.89", 0.92),
    _resnet(256, "first study", 3.2, "first study: 0.83", 0.88),
    _resnet(1440, "first study", 16, "NNabla: 7.5 times the memory at 0.55", 0.80),
    _resnet(1440, "first study", 20, "first study: 0.86", 0.90),
    _resnet(832, "p100-nvlink1", 16, "TFLMS: 4.7 times the batch, 10 to 30 % slower", 0.95),
    _resnet(1014, "p100-pcie3", 16, "Capuchin: the largest batch", 0.0),
    Cell("unet3d.py:unet3d", {"batch": 4, "size": 192}, "p100-nvlink1", 16 * GB, "TFLMS: fits", 0.90),
)


def measured(cell: Cell) -> dict[str, object]:
    """Return what every planner makes of a cell."""
    problem = _problem(cell)
    ours = make_plan(problem)
    rivals: dict[str, float | None] = {}
    for name in PLANNERS:
        if name != "search":
            try:
                rivals[name] = _speed(make_plan(problem, name, prove=False))
            except Infeasible:
                rivals[name] = None
    speed = _speed(ours)
    best = max((found for found in rivals.values() if found is not None), default=None)
    row = {
        **asdict(cell),
        "ops": len(problem.graph.ops),
        "in_core_peak_bytes": ours.in_core.peak_bytes,
        "floor_bytes": ours.floor_bytes,
        "speed": speed,
        "bound_speed": ours.in_core.seconds / ours.bound_seconds,
        "distance": ours.predicted.seconds / ours.bound_seconds - 1,
        "published": rivals,
        "best_published": best,
        "planning_seconds": ours.planning_seconds,
    }
    print(
        f"{cell.workload} {dict(cell.settings)} {cell.machine} {cell.budget_bytes / GB:g} GB: ours {speed:.3f} "
        f"(goal {cell.goal}), best published {best and round(best, 3)}, bound {row['bound_speed']:.3f}",
        flush=True,
    )
    return row


def _speed(plan: Plan) -> float:
    return plan.in_core.seconds / plan.predicted.seconds


def _problem(cell: Cell) -> Problem:
    file, _, function = cell.workload.partition(":")
    found = load_workload_function(f"{ROOT / 'benchmarks' / 'workloads' / file}:{function}")
    machine = FIRST_STUDY if cell.machine == "first study" else described_machine(cell.machine)
    problem = problem_of(capture_workload(found, cell.settings).graph, KnownMachine(machine))
    return replace(problem, budget=Budget(cell.budget_bytes))


def main() -> None:
    """Plan all cells and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="only cells whose claim or workload contains this")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "published.json")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for cell in CELLS:
        if options.only not in f"{cell.claim} {cell.workload} {dict(cell.settings)}":
            continue
        try:
            rows.append(measured(cell))
        except Infeasible as refusal:
            print(f"{cell.claim}: {refusal}", flush=True)
            rows.append({**asdict(cell), "infeasible": str(refusal)})
        found = {**setting("python benchmarks/published.py"), "cells": rows}
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
