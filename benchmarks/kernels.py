"""What do compiled kernels give? The same steps by torch's operators and by kernels of Inductor.

    python benchmarks/kernels.py [--only TEXT] [--resume]

Each training is a process of its own: `eager`, torch's operators where the step fits; `inductor`, compiled kernels
where it fits; and these in half of the memory that they took there. Seconds are those of the last of a few steps. The
losses and the state that the last two leave are compared bit by bit.
"""

from collections.abc import Sequence

from deep import Training, ended, settled
from rows import Goal, Row, of_all, write_rows

AMPLE = 1 << 40
SHARE = 2

TRAININGS = {
    "eager": "torch's operators",
    "inductor": "compiled kernels",
    "half": "compiled kernels, in half of that",
}
"""What a row compares."""

COMPILED = (
    Training("gpt2.py:gpt2", {"size": "small", "batch": 4, "length": 512}),
    Training("unet3d.py:unet3d", {"size": 96, "batch": 1}),
)


def measured(item: Training) -> Row:
    """Train by torch's operators, then by compiled kernels, in core and in a share of that."""
    eager = ended(item, AMPLE)
    whole = ended(item, AMPLE, "inductor")
    budget = max(whole["process_bytes"]) // SHARE
    half = ended(item, budget, "inductor")
    found: Row = {
        "bitwise": all(whole[key] == half[key] for key in ("losses", "digest")),
        "budget_bytes": budget,
    }
    for who, row in zip(TRAININGS, (eager, whole, half), strict=True):
        found |= {f"{who}_process_bytes": max(row["process_bytes"])}
        found |= {f"{who}_step_seconds": settled(row["seconds"]), f"{who}_first_seconds": row["seconds"][0]}
    return found


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of every row."""
    return [
        of_all("compiled kernels: bits in half of the memory", "those in core", [row["bitwise"] for row in rows]),
        of_all("the budget is kept", "all", [row["half_process_bytes"] <= row["budget_bytes"] for row in rows]),
    ]


def told(row: Row) -> str:
    """Return a row in one line."""
    eager = row["eager_step_seconds"]
    return (
        f"bitwise {row['bitwise']}, {row['half_process_bytes'] >> 20} of {row['budget_bytes'] >> 20} MiB, "
        f"speed in core {eager / row['inductor_step_seconds']:.2f}, in half {eager / row['half_step_seconds']:.2f}"
    )


if __name__ == "__main__":
    write_rows("kernels", COMPILED, measured, told)
