"""What does the order of the ops alone save, and who finds the best one first?

    python benchmarks/order_alone.py [--only TEXT] [--resume]

Nothing is moved or repeated. Each row is a graph in the order in which it was captured, and its peak in the orders of
OLLA, SERENITY and `planning.order.reorder`, each with the seconds that it took. OLLA's programme has 60 seconds, ours
the work of 10.

    less             1 - peak / peak of the captured order
    unavoidable      what every order holds at once: no order is below
    less, placed     1 - arena of our order / what PyTorch's allocator reserves for the captured one: both of what OLLA
                     gives, order and addresses, against what it is compared with

Goals: a peak not above theirs in any row, found sooner. OLLA reports 30 % less on average in a median of 7 s, for order
and addresses together, at batches of 1 and 32; SERENITY a peak 1.68 times lower on irregular cells, 1.86 with
rewriting, against TensorFlow Lite and in inference.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median

from allocators.caching import caching_allocator
from cells import RIVAL_SECONDS, Cell, problem_for
from patience import within
from rows import Goal, Row, write_rows
from typical import IRREGULAR, TRAINING_STEPS

from outgrow.ir.graph import Graph
from outgrow.planning.addresses.blocks import blocks_of
from outgrow.planning.addresses.placement import place
from outgrow.planning.order.jobs import jobs_of, live_bytes_in
from outgrow.planning.order.moves import moves_to
from outgrow.planning.order.reorder import Effort, lowered
from outgrow.planning.order.unavoidable import unavoidable_bytes
from outgrow.planning.problem import Problem
from outgrow.planning.published.olla import jobs_with_early_updates, olla_schedule
from outgrow.planning.published.serenity import serenity_schedule
from outgrow.rewriting.derive import apply_laws

EFFORT_SECONDS = 10.0


@dataclass(frozen=True)
class Ordered:
    """A workload whose ops are ordered; `family` is "irregular", "inference" (of the irregular cells) or "training"."""

    cell: Cell
    family: str

    @property
    def name(self) -> str:
        """The workload."""
        return self.cell.title


def _with_batch(cell: Cell, batch: int) -> Cell:
    """Return the cell with another batch; in one of 1 its weights weigh most."""
    return Cell(cell.workload, {**cell.settings, "batch": batch}, cell.machine)


GRAPHS = (
    *(Ordered(cell, "irregular") for cell in IRREGULAR),
    *(Ordered(Cell(cell.workload, {**cell.settings, "inference": True}), "inference") for cell in IRREGULAR),
    *(Ordered(_with_batch(cell, 1), "training") for cell in TRAINING_STEPS),
    *(Ordered(_with_batch(cell, 32), "training") for cell in TRAINING_STEPS if cell.workload != "isensee.py:isensee"),
)


def measured(item: Ordered) -> Row:
    """Return the peaks of all orders of a workload's step."""
    problem = problem_for(item.cell)
    jobs = jobs_of(problem.graph, problem.workspace)
    captured = max(live_bytes_in(jobs, range(len(jobs))))
    placed = within(RIVAL_SECONDS, _ours_placed, problem)
    found = {name: _timed(order, problem) for name, order in ORDERS.items()}
    return {
        **asdict(item.cell),
        "family": item.family,
        "ops": len(problem.graph.ops),
        "captured_peak_bytes": captured,
        "unavoidable_bytes": unavoidable_bytes(jobs),
        "reserved_bytes": caching_allocator(blocks_of(problem.graph, problem.workspace)).reserved_bytes,
        "arena_bytes": placed,
        "orders": found,
    }


def _timed(order: Callable[[Problem], int], problem: Problem) -> Row:
    """Return the peak that a method finds, none if it takes too long, and the seconds, its process's start included."""
    begin = time.perf_counter()
    peak = within(RIVAL_SECONDS, order, problem)
    return {"peak_bytes": peak, "seconds": time.perf_counter() - begin}


def reordered(problem: Problem) -> Graph:
    """Return the step in our order: early updates lowered, and lowered again where updates may go anywhere."""
    graph, effort = problem.graph, EFFORT_SECONDS / 2
    early, tied = jobs_with_early_updates(problem)
    number = {op.name: at for at, op in enumerate(graph.ops)}
    first = [number[early.ops[job].name] for job in lowered(tied, list(range(len(tied))), Effort.of(effort))]
    jobs = jobs_of(graph, problem.workspace, first_stays=True)
    start = min(list(range(len(jobs))), first, key=lambda order: max(live_bytes_in(jobs, order)))
    order = lowered(jobs, start, Effort.of(effort))
    return apply_laws(graph, moves_to(graph, [graph.ops[job].name for job in order]))


def _ours(problem: Problem) -> int:
    graph = reordered(problem)
    jobs = jobs_of(graph, problem.workspace)
    return max(live_bytes_in(jobs, range(len(jobs))))


def _ours_placed(problem: Problem) -> int:
    graph = reordered(problem)
    return place(blocks_of(graph, problem.workspace)).arena_bytes


def _olla(problem: Problem) -> int:
    return olla_schedule(jobs_with_early_updates(problem)[1]).peak_bytes


def _serenity(problem: Problem) -> int:
    return serenity_schedule(jobs_of(problem.graph, problem.workspace, first_stays=True)).peak_bytes


ORDERS = {"ours": _ours, "olla": _olla, "serenity": _serenity}


def less(row: Row, method: str = "ours") -> float | None:
    """Return the share by which a method's peak is below that of the captured order."""
    peak = row["orders"][method]["peak_bytes"]
    return None if peak is None else 1 - peak / row["captured_peak_bytes"]


def less_placed(row: Row) -> float | None:
    """Return the share by which our arena is below what PyTorch's allocator reserves for the captured order."""
    return None if row["arena_bytes"] is None else 1 - row["arena_bytes"] / row["reserved_bytes"]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return each goal, the limit, what was found and whether it is met."""
    found: list[Goal] = []
    for method in ("olla", "serenity"):
        peaks = [(row["orders"]["ours"]["peak_bytes"], row["orders"][method]["peak_bytes"]) for row in rows]
        above = sum(theirs is not None and (ours is None or ours > theirs) for ours, theirs in peaks)
        found.append((f"rows in which {method} has the lower peak", "0", str(above), above == 0))
        seconds = [row["orders"][method]["seconds"] for row in rows]
        own = median(row["orders"]["ours"]["seconds"] for row in rows)
        found.append(
            (
                f"median seconds, {method}'s beside ours",
                "less",
                f"{median(seconds):.1f}, {own:.1f}",
                own < median(seconds),
            )
        )
    training = [row for row in rows if row["family"] == "training"]
    placed = [share for row in training if (share := less_placed(row)) is not None]
    if placed:
        found.append(("less than PyTorch, training, mean", ">= 30 %", f"{mean(placed):.0%}", mean(placed) >= 0.30))
    for family in ("inference", "irregular"):
        shares = [less(row) for row in rows if row["family"] == family]
        times = [1 / (1 - share) for share in shares if share is not None]
        if times:
            title = f"captured peak over ours, irregular cells{', in inference' if family == 'inference' else ''}, mean"
            found.append((title, "1.68 (another baseline)", f"{mean(times):.2f}", None))
    return found


def told(row: Row) -> str:
    """Return a row in one line."""
    shares = [
        f"{method} {_spelled(less(row, method))} in {row['orders'][method]['seconds']:.1f} s" for method in ORDERS
    ]
    best = 1 - row["unavoidable_bytes"] / row["captured_peak_bytes"]
    return f"less: {', '.join(shares)}, at most {best:.1%}; placed {_spelled(less_placed(row))}"


def _spelled(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    write_rows("order_alone", GRAPHS, measured, told)
