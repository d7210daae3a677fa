"""A training that is saved, killed and resumed goes on with the bits of one that was never stopped."""

import signal
from pathlib import Path

from tests.bitwise import resumed
from tests.bitwise.resumed import STATE_BYTES
from tests.children import ran

LAST = 5


def losses(budget_bytes: int, first: int, last: int, folder: Path) -> list[str]:
    """The losses of some steps, taken by a process of its own that is killed afterwards."""
    (folder / "spill").mkdir(parents=True, exist_ok=True)
    code = Path(resumed.__file__).read_text()
    ended = ran(code, budget_bytes, first, last, folder / "saved.pt", folder / "spill", seconds=250)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert list((folder / "spill").iterdir()) == []
    return ended.stdout.split()


def test_a_killed_training_goes_on_under_another_budget(disk_folder: Path) -> None:
    """Weights and averages rest on the disk when they are saved, and the second budget is larger."""
    expected = losses(0, 0, LAST, disk_folder / "plain")
    begun = losses(STATE_BYTES * 3 // 4, 0, 3, disk_folder / "resumed")
    later = losses(STATE_BYTES * 5 // 4, 3, LAST, disk_folder / "resumed")
    assert begun + later == expected
