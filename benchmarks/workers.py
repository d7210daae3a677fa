"""Does a step that several processes share compute what one computes, and do they send what was predicted?

    python benchmarks/workers.py [--only TEXT] [--resume]

Each row is a small model of `workloads/families.py`, in double precision, three steps over gloo, on processes of one
thread. Tensors are cut however small they are, and few of their sizes can be divided evenly.

    losses, parameters   the largest difference from one process, over the largest element of the tensor
    received             bytes that all workers received in three steps, as counted while they ran, and as predicted

Workers have ample room, so they hold parameters and sums (`planning.partition.room`), but for rows of equal shares.
Rows of half the memory train a larger model in single precision, in equal shares: first without want, then with half of
what the process with most took. The losses of the two are compared to the last bit.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import Goal, Row, of_all, told_by_a_process, workload_function, write_rows

TOLERANCE = 1e-12
MOST_BYTES = 0.02
STEPS = 3
AMPLE = 1 << 40
LIMIT_SECONDS = 1200.0


@dataclass(frozen=True)
class Shared:
    """A row: a workload, how many processes share it, and whether they have half of the memory."""

    workload: str
    workers: int
    settings: tuple[tuple[str, object], ...] = ()
    is_halved: bool = False
    has_room: bool = True

    @property
    def name(self) -> str:
        """What the row is called."""
        held = ", half the memory" if self.is_halved else "" if self.has_room else ", equal shares"
        return f"{self.workload.split(':')[1]}, {self.workers} processes{held}"


FAMILIES = ("perceptron", "image", "volume", "text", "series")
_TEXTS, _PICTURES = (("size", "small"), ("batch", 2), ("length", 128)), (("batch", 32), ("size", 96))
SHARED = (
    *(Shared(f"families.py:{family}", workers) for workers in (2, 3, 4, 8) for family in FAMILIES),
    *(Shared(f"families.py:{family}", 4, has_room=False) for family in FAMILIES),
    Shared("resnet.py:resnet50", 2, _PICTURES, is_halved=True),
    *(Shared("gpt2.py:gpt2", workers, _TEXTS, is_halved=True) for workers in (2, 4)),
)


def measured(item: Shared) -> Row:
    """Train in processes, and compare."""
    request = (item.workload, dict(item.settings), item.workers, item.is_halved, item.has_room)
    return told_by_a_process(__file__, *request, limit_seconds=LIMIT_SECONDS)


def served(workload: str, settings: dict[str, Any], workers: int, is_halved: bool, has_room: bool) -> Row:
    """Start the processes of a row, once or twice, and return what they found."""
    from torch.multiprocessing.spawn import ProcessRaisedException

    if not is_halved:
        found = _together(workload, settings, workers, AMPLE, compare=True, has_room=has_room)
        return {**found[0], "received_bytes": sum(item["received_bytes"] for item in found)}
    ample = _together(workload, settings, workers, AMPLE, compare=False, has_room=False)
    budget = max(item["process_bytes"] for item in ample) // 2
    try:
        half = _together(workload, settings, workers, budget, compare=False, has_room=False)
    except ProcessRaisedException as failure:
        return {"bitwise": False, "budget_bytes": budget, "refusal": str(failure).strip().splitlines()[-1]}
    return {
        "bitwise": [item["losses"] for item in half] == [item["losses"] for item in ample],
        "budget_bytes": budget,
        "ample_process_bytes": max(item["process_bytes"] for item in ample),
        "process_bytes": max(item["process_bytes"] for item in half),
        "ample_step_seconds": max(item["step_seconds"] for item in ample),
        "step_seconds": max(item["step_seconds"] for item in half),
    }


def _together(
    workload: str, settings: dict[str, Any], workers: int, budget: int, *, compare: bool, has_room: bool
) -> list[dict[str, Any]]:
    """Run all workers of a training and return what each found."""
    from torch.multiprocessing.spawn import spawn

    with tempfile.TemporaryDirectory() as folder:
        spawn(_work, (workload, settings, workers, budget, compare, has_room, folder), nprocs=workers)
        return [json.loads(_told(folder, worker).read_text()) for worker in range(workers)]


def _told(folder: str, worker: int) -> Path:
    return Path(folder) / f"{worker}.json"


def _work(
    worker: int,
    workload: str,
    settings: dict[str, Any],
    workers: int,
    budget: int,
    compare: bool,
    has_room: bool,
    folder: str,
) -> None:
    import time

    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    import outgrow
    from outgrow.frontends.workers import workers as frontend
    from outgrow.frontends.workloads.loading import built
    from outgrow.planning.partition import options

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    options.SMALL_BYTES = 0 if compare else options.SMALL_BYTES
    frontend.FOR_TENSORS = frontend.FOR_TENSORS if has_room else 0.0
    dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=worker, world_size=workers)
    function = workload_function(workload)
    job = built(function, settings)
    mesh = init_device_mesh("cpu", (workers,))
    step = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget, mesh=mesh)
    torch.manual_seed(1)
    losses: list[Tensor] = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        losses.append(step(*job.batches[0]).detach())
        seconds = time.perf_counter() - begin
    shared = step.shared
    found: dict[str, Any] = {
        "losses": [loss.item() for loss in losses],
        "process_bytes": step.process_bytes,
        "step_seconds": seconds,
        "received_bytes": shared.received_bytes,
        "predicted_bytes": STEPS * sum(shared.predicted_bytes),
    }
    if compare:
        parameters = [p.full_tensor() if isinstance(p, DTensor) else p for p in job.model.parameters()]
        alone = built(function, settings)
        torch.manual_seed(1)
        expected = [alone.step(*alone.batches[0]).detach() for _ in range(STEPS)]
        pairs = zip(parameters, alone.model.parameters(), strict=True)
        found["losses_error"] = max(_error(one, other) for one, other in zip(losses, expected, strict=True))
        found["parameters_error"] = max(_error(one, other) for one, other in pairs)
    _told(folder, worker).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _error(found: Any, expected: Any) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of all rows."""
    compared = [row for row in rows if "losses_error" in row]
    halved = [row for row in rows if "bitwise" in row]
    ran = [row for row in halved if "refusal" not in row]
    same = [max(row["losses_error"], row["parameters_error"]) <= TOLERANCE for row in compared]
    as_said = [abs(row["received_bytes"] / row["predicted_bytes"] - 1) <= MOST_BYTES for row in compared]
    return [
        of_all("losses and parameters, relative to one process", f"<= {TOLERANCE}", same),
        of_all("bytes received, of those predicted", f"within {MOST_BYTES:.0%}", as_said),
        of_all("half the memory: the losses of ample memory, bit for bit", "all", [row["bitwise"] for row in halved]),
        of_all("half the memory: kept", "all", [row["process_bytes"] <= row["budget_bytes"] for row in ran]),
    ]


def told(row: Row) -> str:
    """Return a row in one line."""
    if "refusal" in row:
        return row["refusal"]
    if "bitwise" in row:
        times = row["step_seconds"] / row["ample_step_seconds"]
        of = f"{row['process_bytes'] >> 20} of {row['budget_bytes'] >> 20} MiB"
        return f"bitwise {row['bitwise']}, {of}, {times:.2f} x the seconds of ample memory"
    errors = f"losses {row['losses_error']:.0e}, parameters {row['parameters_error']:.0e}"
    return f"{errors}, received {row['received_bytes']:,} of {row['predicted_bytes']:,} bytes"


if __name__ == "__main__":
    write_rows("workers", SHARED, measured, told, served=served)
