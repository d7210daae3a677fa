"""What does it cost to run a step op by op, where it has just enough room?

    python benchmarks/many_ops.py [--only TEXT] [--resume]

Steps of many small operators are planned in so much memory that nothing has to move, and not so much that the user's
function would be called as it is. Eager and planned steps of one process take turns, A B B A, on one thread.

    seconds   of the planned step over those of the eager one beside it, the median over the rounds
    per op    microseconds that the planned step takes longer, for each operator of its graph
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from deep import Training
from rows import Row, told_by_a_process, workload_function, write_rows

SETTLING, ROUNDS, SECONDS = 8, 40, 30.0
"""Calls before the rounds; as many rounds as fit the seconds, but at least a quarter of them."""
LIMIT_SECONDS = 900


SMALL = (
    Training("lstm.py:lstm", {"layers": 2, "batch": 20, "length": 35, "units": 200}),
    Training("resnet.py:resnet", {"depth": 101, "batch": 2, "size": 64}),
    Training("nmt.py:attention_nmt", {"steps": 50, "batch": 16, "units": 64, "vocabulary": 1000}),
)


def measured(item: Training) -> Row:
    """Let the two take turns in a process of their own."""
    return {**asdict(item), **told_by_a_process(__file__, item.workload, item.settings, limit_seconds=LIMIT_SECONDS)}


def served(workload: str, settings: Mapping[str, object]) -> dict[str, Any]:
    """Train in turns, and return what a step took."""
    import torch

    from outgrow.errors import Infeasible
    from outgrow.frontends.compile import compile_workload
    from outgrow.frontends.preparing.warmup import warm_up
    from outgrow.frontends.workloads.loading import built

    torch.set_num_threads(1)
    function, baseline = workload_function(workload), warm_up("eager")
    plain, made = built(function, settings), built(function, settings)
    options: dict[str, Any] = {"kernels": "eager", "baseline_bytes": baseline}
    ample = compile_workload(built(function, settings), memory_budget="1TiB", **options)
    ample(*made.batches[0])
    peak = ample.plan.in_core_peak_bytes
    ample.close()
    del ample
    budget = 1 << 20
    try:
        compile_workload(built(function, settings), memory_budget=budget, **options)(*made.batches[0])
    except Infeasible as refusal:
        budget = refusal.floor_bytes + peak
    step = compile_workload(made, memory_budget=budget, **options)

    def seconds(step: Callable[..., Any], batch: tuple[object, ...]) -> float:
        begin = time.perf_counter()
        step(*batch)
        return time.perf_counter() - begin

    for _ in range(SETTLING):
        seconds(plain.step, plain.batches[0])
        seconds(step, made.batches[0])
    pairs: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(pairs) < ROUNDS // 4 or (len(pairs) < ROUNDS and time.perf_counter() - begin < SECONDS):
        ours = seconds(step, made.batches[0]) if len(pairs) % 2 else None
        eager = seconds(plain.step, plain.batches[0])
        pairs.append((eager, seconds(step, made.batches[0]) if ours is None else ours))
    plan = step.plan
    assert not plan.ran_as_written
    return {
        "ops": len(step.captured.ops),
        "budget_bytes": budget,
        "bytes_swapped": plan.bytes_swapped,
        "eager_seconds": median(eager for eager, _ in pairs),
        "step_seconds": median(ours for _, ours in pairs),
        "ratio": median(ours / eager for eager, ours in pairs),
        "more_seconds": median(ours - eager for eager, ours in pairs),
    }


def told(row: Row) -> str:
    """Return a row in one line."""
    return f"{row['ratio']:.2f} x eager, {row['more_seconds'] / row['ops'] * 1e6:.1f} us per op more"


if __name__ == "__main__":
    write_rows("many_ops", SMALL, measured, told, served=served)
