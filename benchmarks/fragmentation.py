"""How much larger than what is live does the memory have to be? Four ways to give out addresses, in simulation.

    python benchmarks/fragmentation.py [--only TEXT] [--resume] [--large]

Every typical workload in core and under our plan for half of that. For each, the blocks of the graph come and go in:

    ours         `planning.addresses.placement`: an address for each block, known before the step
    pages        `planning.addresses`: pages of 2 MiB, shown in any order where one piece has holes
    caching      PyTorch's allocator (`allocators.caching`), which sees one request after the other
    virtual      NNabla's chunks of 20 MB and of 2 MB, mapped into virtual ranges (`allocators.virtual`)

    fragmentation = memory / most bytes that are live at once - 1

Goal: ours and pages at most 0.5 % in every row; of PyTorch's allocator, 8 to 26 % are reported (OLLA).
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from allocators.caching import caching_allocator
from allocators.virtual import SMALL_CHUNK_BYTES, virtual_addresses
from cells import PATIENCE_SECONDS, Cell, problem_for
from patience import within
from rows import Goal, Row, write_rows
from typical import LARGE_TEXTS, TYPICAL

from outgrow.errors import Infeasible
from outgrow.plan import Budget
from outgrow.planning.addresses.addresses import in_pages, overlap
from outgrow.planning.addresses.blocks import blocks_of
from outgrow.planning.addresses.placement import place
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import apply_laws
from outgrow.simulation import replay
from outgrow.units import MIB

GOAL = 0.005
PAGE_BYTES = 2 * MIB


@dataclass(frozen=True)
class Placed:
    """A workload in core (share 1) or under a plan for a part of the memory that it takes there."""

    cell: Cell
    share: int

    @property
    def name(self) -> str:
        """Workload and share."""
        return f"{self.cell.title}, {'in core' if self.share == 1 else f'1/{self.share}'}"


LARGE = tuple(Placed(cell, share) for cell in LARGE_TEXTS for share in (1, 2))
STEPS = (*(Placed(cell, share) for cell in TYPICAL for share in (1, 2)), *LARGE)


def measured(step: Placed) -> Row:
    """Return the fragmentation of all ways for one step; none of them where there is no plan."""
    problem = problem_for(step.cell)
    if step.share > 1:
        in_core = replay(problem.graph, problem.costs, problem.machine).peak_bytes
        problem = replace(problem, budget=Budget(in_core // step.share))
    row = {**asdict(step.cell), "share": step.share, "ops": len(problem.graph.ops)}
    return {**row, **(within(PATIENCE_SECONDS, _placed, problem) or {"refusal": f"not in {PATIENCE_SECONDS:.0f} s"})}


def _placed(problem: Problem) -> Row:
    try:
        graph = apply_laws(problem.graph, planned(problem, prove=False).plan.decisions)
    except Infeasible as refusal:
        return {"refusal": str(refusal)}
    blocks = blocks_of(graph, problem.workspace)
    begin = time.perf_counter()
    ours = place(blocks)
    placed = time.perf_counter()
    arena_bytes, addresses, pages = in_pages(blocks, PAGE_BYTES)
    shown = time.perf_counter()
    fault = overlap(blocks, addresses, arena_bytes, pages, PAGE_BYTES)
    assert fault is None, fault
    chunks = virtual_addresses(blocks)
    return {
        "refusal": "",
        "blocks": len(blocks),
        "live_bytes": ours.live_bytes,
        "ours": ours.arena_bytes / ours.live_bytes - 1,
        "placing_seconds": placed - begin,
        "pages": arena_bytes / ours.live_bytes - 1,
        "stitching_seconds": shown - placed,
        "mapped_pages": len(pages),
        "caching": caching_allocator(blocks).fragmentation,
        "virtual": chunks.fragmentation,
        "virtual_small": virtual_addresses(blocks, SMALL_CHUNK_BYTES).fragmentation,
    }


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return each goal, the limit, what was found and whether it is met."""
    placed = [row for row in rows if not row["refusal"]]
    if not placed:
        return []
    worst = {key: max(row[key] for row in placed) for key in ("ours", "pages")}
    ranges = [
        (title, "-", f"{min(found):.1%} to {max(found):.1%}, median {median(found):.1%}", None)
        for title, key in (
            ("PyTorch's allocator", "caching"),
            ("chunks of 20 MB", "virtual"),
            ("of 2 MB", "virtual_small"),
        )
        if (found := [row[key] for row in placed])
    ]
    ours = [(f"{key}, worst", f"<= {GOAL:.1%}", f"{worst[key]:.2%}", worst[key] <= GOAL) for key in worst]
    return [*ours, *ranges]


def told(row: Row) -> str:
    """Return a row in one line."""
    if row["refusal"]:
        return row["refusal"]
    return (
        f"ours {row['ours']:.2%} in {row['placing_seconds']:.1f} s, pages {row['pages']:.2%} in "
        f"{row['stitching_seconds']:.1f} s, caching {row['caching']:.1%}, "
        f"virtual {row['virtual']:.1%}, in small chunks {row['virtual_small']:.1%}"
    )


if __name__ == "__main__":
    write_rows("fragmentation", STEPS, measured, told, large=LARGE)
