"""What is the largest batch that trains hardly slower than in core? Ours beside the papers', in simulation.

    python benchmarks/largest.py [--only TEXT] [--resume]

The rows are those of `benchmarks/claims.py` whose batch is claimed and whose step is captured in seconds. From the
paper's batch, the search doubles or halves until it has the largest that is at most 1.1 times as slow as the same step
in core (`frontends.preparing.largest`), to 2 %.
"""

from cells import OURS, machine_of
from claims import CAPUCHIN, CLAIMS, HARDLY_SLOWER, MENG, TFLMS, Claim
from rows import Row, workload_function, write_rows

from outgrow.frontends.preparing.ahead import Ahead, KnownMachine
from outgrow.frontends.preparing.largest import Trial, largest, trial
from outgrow.frontends.workloads.steps import capture_workload
from outgrow.planning.planned import Planned

CHEAP = ("resnet.py:resnet50", "vgg.py:vgg16", "inception.py:inception_v3", "pix2pixhd.py:pix2pixhd")
_CLAIMED = {
    (claim.cell.workload, claim.source): claim
    for claim in CLAIMS
    if claim.source in {MENG, CAPUCHIN, TFLMS} and claim.cell.workload in CHEAP
}
BATCHES = tuple(_CLAIMED.values())
"""One for each workload of a paper: of several batches, the last, which is the largest."""


def measured(claim: Claim) -> Row:
    """Return the largest batch, and the slowdown of each one that was tried."""
    cell, budget = claim.cell, claim.budget_bytes
    batch = cell.settings["batch"]
    assert isinstance(batch, int), "a batch is a number of pictures"
    tried: dict[int, float | None] = {}

    def with_batch(value: int) -> Trial:
        first = capture_workload(workload_function(cell.workload), {**cell.settings, "batch": value})
        one = trial(Ahead((first,), KnownMachine(machine_of(cell))), budget, OURS, value)
        plan = one.found.plan if isinstance(one.found, Planned) else None
        tried[value] = plan.in_core.seconds / plan.predicted.seconds if plan else None
        return one

    found = largest(with_batch, batch, 1 / HARDLY_SLOWER)
    return {
        "source": claim.source,
        "figure": claim.figure,
        "workload": cell.workload,
        "settings": dict(cell.settings),
        "machine": cell.machine,
        "budget_bytes": budget,
        "paper": batch,
        "largest": found.value if found else 0,
        "speed": tried[found.value] if found else None,
        "tried": tried,
    }


def told(row: Row) -> str:
    """Return a row in one line."""
    return f"batch {row['largest']} (paper: {row['paper']}), {len(row['tried'])} tried"


if __name__ == "__main__":
    write_rows("largest", BATCHES, measured, told)
