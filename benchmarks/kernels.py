"""What do compiled kernels give? The same steps by torch's operators and by kernels of Inductor.

    python benchmarks/kernels.py [--only TEXT] [--resume]

Each training is a process of its own: `eager`, torch's operators where the step fits; `inductor`, compiled kernels
where it fits; and these in half of the memory that they took there. Seconds are those of the last of a few steps. The
losses and the state that the last two leave are compared bit by bit.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deep import served
from rows import Goal, Row, spelled, told_by_a_process, write_rows

AMPLE = 1 << 40
SHARE = 2
LIMIT_SECONDS = 1200


@dataclass(frozen=True)
class Compiled:
    """A row: a workload in which much is done element by element."""

    workload: str
    settings: Mapping[str, object]
    is_large: bool = False

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.workload.split(':')[1]}, {spelled(self.settings)}"


TRAININGS = {
    "eager": "torch's operators",
    "inductor": "compiled kernels",
    "half": "compiled kernels, in half of that",
}
"""What a row compares."""

COMPILED = (
    Compiled("gpt2.py:gpt2", {"size": "small", "batch": 4, "length": 512}),
    Compiled("unet3d.py:unet3d", {"size": 96, "batch": 1}),
)


def measured(item: Compiled) -> Row:
    """Train by torch's operators, then by compiled kernels, in core and in a share of that."""
    eager = _ended(item, AMPLE, "eager")
    whole = _ended(item, AMPLE, "inductor")
    budget = whole["process_bytes"] // SHARE
    half = _ended(item, budget, "inductor")
    return {
        "bitwise": all(whole[key] == half[key] for key in ("losses", "digest")),
        "budget_bytes": budget,
        **{
            f"{who}_{key}": row[key]
            for who, row in (("eager", eager), ("inductor", whole), ("half", half))
            for key in ("process_bytes", "step_seconds", "first_seconds")
        },
    }


def _ended(item: Compiled, budget: int, kernels: str) -> dict[str, Any]:
    settings = json.dumps(dict(item.settings))
    row = told_by_a_process(__file__, item.workload, settings, str(budget), kernels, limit_seconds=LIMIT_SECONDS)
    return {**row, "step_seconds": row["seconds"][-1], "first_seconds": row["seconds"][0]}


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of every row."""
    same = sum(row["bitwise"] for row in rows)
    kept = sum(row["half_process_bytes"] <= row["budget_bytes"] for row in rows)
    return [
        ("compiled kernels: bits in half of the memory", "those in core", f"{same} of {len(rows)}", same == len(rows)),
        ("the budget is kept", "all", f"{kept} of {len(rows)}", kept == len(rows)),
    ]


def told(row: Row) -> str:
    """Return a row in one line."""
    eager = row["eager_step_seconds"]
    return (
        f"bitwise {row['bitwise']}, {row['half_process_bytes'] >> 20} of {row['budget_bytes'] >> 20} MiB, "
        f"speed in core {eager / row['inductor_step_seconds']:.2f}, in half {eager / row['half_step_seconds']:.2f}"
    )


def main() -> None:
    """Train what the command line asks for."""
    if sys.argv[1:2] == ["--serve"]:
        workload, settings, budget, kernels = sys.argv[2:]
        print(json.dumps(served(workload, json.loads(settings), int(budget), kernels)))
    else:
        write_rows("kernels", COMPILED, measured, told)


if __name__ == "__main__":
    main()
