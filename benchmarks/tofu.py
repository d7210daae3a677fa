"""How near does a step divided among eight devices come to the ideal, beside what Tofu reached on the same networks?

    python benchmarks/tofu.py [--only TEXT] [--resume]

Nothing is run: each step is captured without memory, divided, and the first worker's part is planned within the 12 GB
of a K80 and simulated on eight of them, as `outgrow partition --machine k80x8` does. Of the batches that the
paper's ideal is given with, and smaller ones, the best is taken.

    ideal    samples/s of one device that has all memory, at the paper's batch, times eight: simulated, and the paper's
    share    samples/s over the ideal, each of its own kind: the paper's of the paper's, ours of the simulated one

Source: M. Wang, C. Huang, J. Li, "Supporting Very Large Models using Automatic Dataflow Graph Partitioning", EuroSys
2019, section 7.2, figures of samples/s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rows import Goal, Row, of_all, spelled, told_by_a_process, workload_function, write_rows

WORKERS = 8
MACHINE = "k80x8"
BUDGET_BYTES = 12 * 10**9


@dataclass(frozen=True)
class Cell:
    """A network of the paper, its batches, and the paper's ideal and Tofu's samples/s."""

    workload: str
    settings: Mapping[str, object]
    batches: tuple[int, ...]
    paper_ideal: float
    paper_tofu: float

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.workload.split(':')[1]}, {spelled(self.settings)}"


_WIDE: Mapping[int, Sequence[tuple[float, float]]] = {
    50: ((47, 41), (18, 17), (10, 9.3), (6.4, 6.0)),
    101: ((27, 20), (9.4, 8.7), (5.3, 4.8), (3.3, 3.1)),
    152: ((19, 11), (6.5, 5.4), (3.6, 2.7), (2.3, 1.9)),
}
_RECURRENT: Mapping[int, Sequence[tuple[float, float]]] = {
    6: ((233, 210), (108, 102), (58, 57)),
    8: ((172, 154), (78, 75), (45, 41)),
    10: ((136, 122), (60, 55), (33, 23)),
}
CELLS = (
    *(
        Cell("wresnet.py:wresnet", {"depth": depth, "width": width}, (128, 64, 32, 8), *figures)
        for depth, row in _WIDE.items()
        for width, figures in zip((4, 6, 8, 10), row, strict=True)
    ),
    *(
        Cell("lstm.py:lstm", {"layers": layers, "units": units, "length": 20}, (512, 256, 128), *figures)
        for layers, row in _RECURRENT.items()
        for units, figures in zip((4096, 6144, 8192), row, strict=True)
    ),
)


def measured(cell: Cell) -> Row:
    """Try batches in processes of their own, largest first; one that fits without swaps is the best."""
    ideal = told_by_a_process(__file__, "ideal", cell.workload, {**cell.settings, "batch": cell.batches[0]})
    best: Row = {}
    for batch in cell.batches:
        found = told_by_a_process(__file__, "divided", cell.workload, {**cell.settings, "batch": batch})
        if found["samples_per_second"] > best.get("samples_per_second", 0.0):
            best = {"batch": batch, **found}
        if found["fits_in_core"]:
            break
    speed = best["samples_per_second"] / ideal["samples_per_second"]
    paper = cell.paper_tofu / cell.paper_ideal
    return {
        **best,
        "ideal_samples_per_second": ideal["samples_per_second"],
        "paper_ideal_samples_per_second": cell.paper_ideal,
        "paper_samples_per_second": cell.paper_tofu,
        "share": speed,
        "paper_share": paper,
    }


def ideal(workload: str, settings: Mapping[str, int]) -> Row:
    """Return the samples/s of devices that have all memory and exchange nothing."""
    from outgrow.analysis.cost import costs_of
    from outgrow.frontends.preparing.machines import described_machine
    from outgrow.frontends.workers.divisible import divisible

    graph = divisible(workload_function(workload), settings).whole().graph
    costs = costs_of(graph, described_machine(MACHINE).device, {})
    seconds = sum(costs[op.captured].seconds for op in graph.ops)
    return {"samples_per_second": WORKERS * settings["batch"] / seconds}


def divided(workload: str, settings: Mapping[str, int]) -> Row:
    """Return the samples/s of the devices together, each within its memory."""
    from outgrow.errors import Infeasible
    from outgrow.frontends.preparing.machines import described_machine
    from outgrow.frontends.workers.divisible import divisible
    from outgrow.frontends.workers.forecast import of_a_worker
    from outgrow.frontends.workers.workers import FOR_TENSORS
    from outgrow.planning.partition.partition import partition

    job = divisible(workload_function(workload), settings)
    machine = described_machine(MACHINE)
    found = partition(job.step, WORKERS, memory_bytes=BUDGET_BYTES * FOR_TENSORS, machine=machine)
    try:
        worker = of_a_worker(job, found, machine, BUDGET_BYTES)
    except Infeasible:
        return {"samples_per_second": 0.0, "fits_in_core": False}
    return {
        "samples_per_second": settings["batch"] / worker.planned.seconds,
        "exchange_share": worker.waiting_seconds / worker.planned.seconds,
        "peak_bytes": worker.planned.peak_bytes,
        "peak_bytes_per_worker": found.peak_bytes_per_worker,
        "communicated_bytes": round(found.communicated_bytes),
        "fits_in_core": found.peak_bytes_per_worker <= BUDGET_BYTES,
    }


def served(kind: str, workload: str, settings: Mapping[str, int]) -> Row:
    """Simulate the devices together, or what would be ideal."""
    return (ideal if kind == "ideal" else divided)(workload, settings)


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of all rows."""
    worst = min(row["share"] for row in rows)
    best = max(row["share"] for row in rows)
    return [
        of_all(
            "share of the ideal", "that of Tofu, in every cell", [row["share"] >= row["paper_share"] for row in rows]
        ),
        ("share of the ideal, all cells", "0.60 to 0.98", f"{worst:.2f} to {best:.2f}", worst >= 0.6),
    ]


def told(row: Row) -> str:
    """Return a row in one line."""
    figures = f"batch {row['batch']}: {row['share']:.3f} of the ideal, Tofu {row['paper_share']:.3f}"
    return f"{figures}, {row['exchange_share']:.3f} of it waiting, peak {row['peak_bytes'] / 1e9:.1f} GB"


if __name__ == "__main__":
    write_rows("tofu", CELLS, measured, told, served=served)
