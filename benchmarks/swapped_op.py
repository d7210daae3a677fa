"""What does Python cost a swapped op? The processor time that a step spends on its transfers.

    python benchmarks/swapped_op.py [--resume]

A chain of layers is trained at the floor of its budget, where most activations leave and come back while others are
computed. Memory and threads are those of every step under a budget; the time that the thread sleeps is not counted.

    overhead    processor seconds of the thread that computes in all that a program says of transfers (swap out, swap
                in, wait, drop), over the number of swapped storages; the median over the rounds
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from rows import Goal, Row, write_rows
from torch import Tensor, nn

from outgrow.analysis.cost import Cost
from outgrow.errors import Infeasible
from outgrow.frontends import calls
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.user.training.state import Training
from outgrow.ir.graph import SwapOut
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.plan import Budget
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import verified
from outgrow.runtime import arena
from outgrow.runtime.execute import Run
from outgrow.runtime.heap import Heap
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.program import Program
from outgrow.runtime.spill import Spill

ROUNDS, WARM = 23, 3
MOST_SECONDS = 50e-6
AMPLE = 1 << 40
MACHINE = Machine("slow to compute", Device("slow", 1.0, 1.0), LinkRates(1e9, 1e9))
"""Nothing is computed twice there, and every transfer is hidden."""
OF_TRANSFERS = ("_swap_out", "_swap_in", "_wait", "_drop")


@dataclass(frozen=True)
class Chain:
    """A row: a chain of layers of some width whose activations have so many rows."""

    layers: int
    width: int
    rows: int

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.layers} layers, {4 * self.width * self.rows >> 20} MiB"


CHAINS = (Chain(30, 512, 2048), Chain(30, 1024, 2048))


def measured(chain: Chain) -> Row:
    """Take steps with swaps."""
    arena.install()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [(nn.Linear(chain.width, chain.width), nn.Tanh()) for _ in range(chain.layers)]
    model = nn.Sequential(*[module for layer in layers for module in layer])
    x = torch.randn(chain.rows, chain.width)

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    training = Training((model,), ())
    captured = capture(step, [model], [], (x,))
    program, swaps = _program(captured)
    with TemporaryDirectory(dir=Path.home()) as folder, _noted() as spent:
        spill = Spill(OnDisk(Path(folder)))
        spill.reserve(program.scratch_bytes, 0)
        overheads: list[float] = []
        for _ in range(ROUNDS):
            spent.clear()
            feed = calls.Feed(captured.given(training, (x,)), program, training)
            calls.carried_out(feed, calls.made_ready(feed, spill, Heap(), AMPLE, observe=False))
            overheads.append(sum(spent) / swaps)
        spill.close()
    return {"swapped": swaps, "overhead_seconds": median(overheads[WARM:])}


def _program(captured: Captured) -> tuple[Program, int]:
    """Return the program at the floor, and how often it swaps."""
    graph = captured.graph
    costs = {op.name: Cost(1.0) for op in graph.ops}
    fixed = frozenset(name for name, storage in graph.storages.items() if storage.is_persistent)
    problem = Problem(graph, costs, MACHINE, Budget(0), fixed=fixed)
    try:
        found = planned(problem, prove=False)
    except Infeasible as refusal:
        found = planned(replace(problem, budget=Budget(refusal.floor_bytes)), prove=False)
    derived = verified(graph, found.plan, found.stages, problem.workspace).graph
    swaps = sum(isinstance(item, SwapOut) for item in derived.instructions)
    return lower(derived, costs=costs), swaps


@contextmanager
def _noted() -> Iterator[list[float]]:
    """Yield the processor seconds of every instruction of transfers that is run meanwhile."""
    spent: list[float] = []

    def timed(run: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: object) -> None:
            begin = time.thread_time()
            run(*arguments)
            spent.append(time.thread_time() - begin)

        return noted

    with ExitStack() as patches:
        for name in OF_TRANSFERS:
            patches.enter_context(patch.object(Run, name, timed(getattr(Run, name))))
        yield spent


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of every row."""
    worst = max(row["overhead_seconds"] for row in rows)
    return [("a swapped op, worst", "< 50 us", f"{worst * 1e6:.0f} us", worst < MOST_SECONDS)]


def told(row: Row) -> str:
    """Return a row in one line."""
    return f"{row['swapped']} swapped, {row['overhead_seconds'] * 1e6:.1f} us each"


if __name__ == "__main__":
    write_rows("swapped_op", CHAINS, measured, told)
