"""A training that is saved, killed and resumed goes on with the bits of one that was never stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.bitwise.resumed import STATE_BYTES

ROOT = Path(__file__).parents[2]
LAST = 5


def losses(budget_bytes: int, first: int, last: int, folder: Path) -> list[str]:
    """The losses of some steps, taken by a process of its own that is killed afterwards."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    arguments = [str(item) for item in (budget_bytes, first, last, folder / "saved.pt", folder / "spill")]
    (folder / "spill").mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bitwise.resumed", *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert list((folder / "spill").iterdir()) == []
    return ended.stdout.split()


def test_a_killed_training_goes_on_under_another_budget(disk_folder: Path) -> None:
    """Weights and averages rest on the disk when they are saved, and the second budget is larger."""
    expected = losses(0, 0, LAST, disk_folder / "plain")
    begun = losses(STATE_BYTES * 3 // 4, 0, 3, disk_folder / "resumed")
    resumed = losses(STATE_BYTES * 5 // 4, 3, LAST, disk_folder / "resumed")
    assert begun + resumed == expected
