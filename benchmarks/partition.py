"""How quickly is a division among workers found, and what does each of them hold and receive?

    python benchmarks/partition.py [--only TEXT] [--resume]

Steps are captured without memory, and nothing is run. Each row is a process of its own; the search is timed once, with
nothing remembered of earlier ones.

    share           peak of a worker, with what it receives for a call, over an equal share of the peak of one device
    lasting share   the same of weights and optimizer state
    with room       the bytes received where each worker may hold what one of data parallel has to
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from rows import Goal, Row, of_all, spelled, told_by_a_process, workload_function, write_rows

if TYPE_CHECKING:
    from outgrow.operators.dataflow import Dataflow

MOST_SHARE = 1.05
WORKERS = 8


@dataclass(frozen=True)
class Divided:
    """A row: a workload and how many share it, and the seconds that its search may take."""

    workload: str
    settings: Mapping[str, object]
    workers: int
    most_seconds: float | None = None

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.workload.split(':')[1]}, {spelled(self.settings)}, {self.workers} workers"


_WIDE = {"depth": 152, "width": 10, "batch": 8}
_RECURRENT = {"layers": 10, "units": 8192, "length": 20, "batch": 128}
_LONG = {"layers": 10, "units": 1024, "length": 52, "batch": 128}
_TEXTS = {"size": "small", "batch": 8, "length": 1024}
_PICTURES = {"batch": 256}
_MANY = {"depth": 50, "width": 4, "batch": 128}
DIVIDED = (
    *(Divided("wresnet.py:wresnet", _WIDE, workers, 1.0 if workers == WORKERS else None) for workers in (2, 4, 8)),
    *(Divided("lstm.py:lstm", _RECURRENT, workers, 3.0 if workers == WORKERS else None) for workers in (2, 4, 8)),
    *(Divided("gpt2.py:gpt2", _TEXTS, workers) for workers in (2, 4, 8, 64)),
    Divided("lstm.py:lstm", _LONG, 64, 30.0),
    Divided("resnet.py:resnet50", _PICTURES, WORKERS),
    Divided("wresnet.py:wresnet", _MANY, WORKERS),
)


def measured(item: Divided) -> Row:
    """Divide in a process of its own."""
    found = told_by_a_process(__file__, item.workload, item.settings, item.workers)
    return {"most_seconds": item.most_seconds, **found}


def served(workload: str, settings: Mapping[str, object], workers: int) -> Row:
    """Capture and divide."""
    import time

    from outgrow.frontends.workers.divisible import divisible
    from outgrow.planning.partition.partition import partition
    from outgrow.planning.partition.shares import Shares
    from outgrow.report.division import division_of

    step = divisible(workload_function(workload), settings).step
    begin = time.perf_counter()
    found = partition(step, workers)
    division = division_of(workload, step, found, time.perf_counter() - begin)
    lasting = sum(tensor.size_bytes for tensor in step.tensors.values() if tensor.lasting)
    room_bytes = data_parallel_peak_bytes(step, workers)
    roomy = partition(step, workers, memory_bytes=room_bytes)
    return {
        **division.to_data(),
        "room_bytes": room_bytes,
        "communicated_bytes_with_room": sum(Shares(step, roomy).received_bytes()),
        "peak_bytes_with_room": roomy.peak_bytes_per_worker,
        "share": division.share,
        "lasting_share": found.lasting_bytes_per_worker * workers / lasting,
    }


def data_parallel_peak_bytes(step: "Dataflow", workers: int) -> int:
    """Return the most bytes that a worker of data parallel has at once: what lasts, gradients, its part of all else.

    A tensor of as many elements as a parameter is taken for a gradient. The batch is whole: every worker is given it.
    """
    from outgrow.planning.partition.footprint import dataflow_peak_bytes

    sizes = {prod(tensor.shape) for tensor in step.tensors.values() if tensor.trained}
    tensors = {
        name: tensor
        if tensor.lasting or tensor.whole or prod(tensor.shape) in sizes
        else replace(tensor, shape=(-(-prod(tensor.shape) // workers),))
        for name, tensor in step.tensors.items()
    }
    return dataflow_peak_bytes(replace(step, tensors=tensors), {})


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of all rows."""
    timed = [row for row in rows if row["most_seconds"] is not None and row["workers"] == WORKERS]
    quick = [row for row in timed if row["search_seconds"] <= row["most_seconds"]]
    large = [row for row in rows if row["most_seconds"] is not None and row["workers"] > WORKERS]
    in_time = [row["search_seconds"] <= row["most_seconds"] for row in large]
    feasible = [row for row in rows if row["data_parallel_bytes"]]
    less = [row["communicated_bytes_with_room"] <= row["data_parallel_bytes"] for row in feasible]
    fits = [row["peak_bytes_with_room"] <= row["room_bytes"] for row in feasible]
    held = [row["lasting_share"] <= MOST_SHARE for row in rows]
    most = max(row["share"] for row in rows if row["workers"] <= WORKERS)
    return [
        ("search for 8 workers: WResNet-152-10, LSTM-10-8K", "<= 1 s, 3 s", _seconds(timed), len(quick) == len(timed)),
        ("search for 64 workers, over 20,000 calls", "<= 30 s", _seconds(large), all(in_time)),
        of_all("weights and optimizer state of a worker", f"<= {MOST_SHARE}/k", held),
        of_all("bytes in the memory of data parallel, of its bytes, where feasible", "never more", less),
        of_all("peak there", "<= the memory of data parallel", fits),
        (
            "peak of 2, 4, 8 workers, with what they receive",
            f"<= {MOST_SHARE}/k",
            f"{most:.2f}/k, worst",
            most <= MOST_SHARE,
        ),
    ]


def _seconds(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['search_seconds']:.1f} s" for row in rows)


def told(row: Row) -> str:
    """Return a row in one line."""
    exact = "exact" if row["is_exact"] else "not exact"
    least, roomy = row["communicated_bytes"] / 1e9, row["communicated_bytes_with_room"] / 1e9
    parallel = f"{row['data_parallel_bytes'] / 1e9:.2f}" if row["data_parallel_bytes"] else "none"
    received = f"{least:.2f} GB, with room {roomy:.2f}, data parallel {parallel}"
    return f"{row['ops']} calls, {row['search_seconds']:.1f} s, {exact}, share {row['share']:.3f}, {received}"


if __name__ == "__main__":
    write_rows("partition", DIVIDED, measured, told, served=served)
