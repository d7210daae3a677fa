"""What does Python cost a swapped op? The processor time of the thread that computes, with swaps and without.

    python benchmarks/swapped_op.py [--resume]

A chain of small layers is trained in core and at the floor of its budget, where most activations leave and come back.
The tensors are small, so that little else is done; the time that the thread waits for the disk is not counted.

    overhead    processor seconds of a step with swaps less those of one without, over the number of swapped storages;
                the median over the rounds, in which both take turns
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from rows import Goal, Row, write_rows
from torch import Tensor, nn

from outgrow.analysis.cost import Cost
from outgrow.errors import Infeasible
from outgrow.frontends import calls
from outgrow.frontends.capture import Captured, capture
from outgrow.frontends.lower import lower
from outgrow.frontends.state import Training
from outgrow.ir.graph import SwapOut
from outgrow.ir.machine import Device, Link, Machine
from outgrow.plan import Budget
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import verified
from outgrow.runtime.execute import Progress
from outgrow.runtime.program import Program
from outgrow.runtime.spill import Spill

ROUNDS = 30
MOST_SECONDS = 50e-6
AMPLE = 1 << 40
MACHINE = Machine("slow to compute", Device("slow", 1.0, 1.0), Link(1e9, 1e9))
"""Nothing is computed twice there, and every transfer is hidden."""


@dataclass(frozen=True)
class Chain:
    """A row: a chain of layers whose activations take so many bytes each."""

    layers: int
    size_bytes: int
    is_large: bool = False

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.layers} layers, {self.size_bytes >> 10} KiB"


CHAINS = tuple(Chain(100, size) for size in (16 << 10, 64 << 10, 256 << 10))


def measured(chain: Chain) -> Row:
    """Let a step in core and one with swaps take turns."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # others would spin while they wait for work, and seem to compute
    width = 16
    model = nn.Sequential(*[module for _ in range(chain.layers) for module in (nn.Linear(width, width), nn.Tanh())])
    training = Training((model,), ())
    x = torch.randn(chain.size_bytes // 4 // width, width)

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    captured = capture(step, [model], [], (x,))
    with TemporaryDirectory(dir=Path.home()) as folder:
        spill = Spill(Path(folder))
        programs = [_program(captured, AMPLE), _program(captured, 0)]
        swaps = programs[1][2]
        spill.reserve(programs[1][0].scratch_bytes, 0)
        overheads: list[float] = []
        for _ in range(ROUNDS):
            seconds = [_seconds(captured, program, costs, training, spill, x) for program, costs, _ in programs]
            overheads.append((seconds[1] - seconds[0]) / swaps)
        spill.close()
    return {"swapped": swaps, "overhead_seconds": median(overheads)}


def _program(captured: Captured, capacity: int) -> tuple[Program, dict[str, Cost], int]:
    """Return the program at a capacity, or at the floor that is named if it is too small, and how often it swaps."""
    graph = captured.graph
    costs = {op.name: Cost(1.0) for op in graph.ops}
    fixed = frozenset(name for name, storage in graph.storages.items() if storage.is_persistent)
    problem = Problem(graph, costs, MACHINE, Budget(capacity), fixed=fixed, minimum_bytes=4096)
    try:
        found = planned(problem, prove=False)
    except Infeasible as refusal:
        found = planned(replace(problem, budget=Budget(refusal.floor_bytes)), prove=False)
    derived = verified(graph, found.plan, found.stages, problem.workspace).graph
    swaps = sum(isinstance(item, SwapOut) for item in derived.instructions)
    return lower(derived), costs, swaps


def _seconds(
    captured: Captured, program: Program, costs: dict[str, Cost], training: Training, spill: Spill, x: Tensor
) -> float:
    call = calls.bind(captured, program, training, (x,), {})
    run = calls.made_ready(call, costs, spill, AMPLE, Progress(), observe=False)
    begin = time.thread_time()
    calls.carried_out(call, run)
    return time.thread_time() - begin


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of every row."""
    worst = max(row["overhead_seconds"] for row in rows)
    return [("a swapped op, worst", "< 50 us", f"{worst * 1e6:.0f} us", worst < MOST_SECONDS)]


def told(row: Row) -> str:
    """Return a row in one line."""
    return f"{row['swapped']} swapped, {row['overhead_seconds'] * 1e6:.1f} us each"


if __name__ == "__main__":
    write_rows("swapped_op", CHAINS, measured, told)
