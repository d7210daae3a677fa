"""Train the U-Net under a limit that the kernel enforces, and say how far it came; a program for `test_hard_cap`.

    python -m tests.bitwise.hard_cap eager|outgrow LIMIT_BYTES BUDGET_BYTES FOLDER

The limit is RLIMIT_DATA, beyond what the process has after warming up and before the job exists; 0: none.
"""

import json
import resource
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest.mock import patch

import brain_unet3d
from outgrow.frontends.compile import compile_workload
from outgrow.frontends.preparing.warmup import warm_up

SIZE, LEVELS, STEPS = 64, 2, 3


@dataclass
class Account:
    """Losses, bit by bit, what the process took in each step, how the training died, what is left on disk."""

    losses: list[str] = field(default_factory=list[str])
    process_bytes: list[int] = field(default_factory=list[int])
    died_of: str = ""
    left_in_folder: list[str] = field(default_factory=list[str])


def main(way: str, limit_bytes: int, budget_bytes: int, folder: Path) -> Account:
    """Train for some steps within the limit."""
    baseline_bytes = warm_up()
    if limit_bytes:
        most = _data_bytes() + limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    account = Account()
    try:
        _train(way, baseline_bytes, budget_bytes, folder, account)
    except (RuntimeError, MemoryError) as error:
        account.died_of = str(error)
    account.left_in_folder = [str(path) for path in folder.iterdir()]
    return account


def _train(way: str, baseline_bytes: int, budget_bytes: int, folder: Path, account: Account) -> None:
    with patch.object(brain_unet3d, "LEVELS", LEVELS):
        workload = brain_unet3d.workload(size=SIZE)
    if way == "eager":
        for _ in range(STEPS):
            account.losses.append(float(workload.step(*workload.batches[0]).detach()).hex())
        return
    step = compile_workload(workload, memory_budget=budget_bytes, offload_dir=folder, baseline_bytes=baseline_bytes)
    for _ in range(STEPS):
        account.losses.append(float(step(*workload.batches[0]).detach()).hex())
        account.process_bytes.append(step.process_bytes)


def _data_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024


if __name__ == "__main__":
    print(json.dumps(asdict(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))))
