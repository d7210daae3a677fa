"""Is the budget real? The kernel refuses memory beyond it: the eager loop dies of that, the compiled step does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outgrow.units import KIB, MIB
from tests.bitwise.hard_cap import Account

BUDGET_BYTES = 240 * MIB
"""Three fifths of what the eager loop takes."""
COUNTED_BYTES = 40 * MIB
"""What RLIMIT_DATA counts and RAM does not hold: it limits addresses that may be written, touched or not.

At the peak these are, beyond the baseline: 9 MiB of scratch memory that MKL asks for in each of its threads and hardly
uses, up to 13 MiB of heap and interpreter arenas with few objects in them, whose other pages went back to the kernel,
and 16 MiB of stacks of the two link threads. Pages of files, such as libraries, are in neither count.
"""
STEADY = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(128 * KIB)}
"""One thread that asks for scratch memory, and a heap that gives back what is freed: else it is by chance up to 10 MiB
more that is counted, and does not depend on what is tested."""
REFUSED_MEMORY = ("can't allocate memory", "could not create a primitive")
"""How torch's allocator says that the kernel refused it memory, and how oneDNN does, which has no room for its code."""
ROOT = Path(__file__).parents[2]


def trained(way: str, folder: Path, cache: Path, *, limit_bytes: int = 0) -> Account:
    """What a process of its own says of its training; processes with one cache measure the machine once."""
    spill = folder / "spill"
    spill.mkdir(exist_ok=True)
    paths = os.pathsep.join(str(ROOT / name) for name in ("", "src", "examples"))
    environment = {**os.environ, **STEADY, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(cache)}
    arguments = (way, str(limit_bytes), str(BUDGET_BYTES), str(spill))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bitwise.hard_cap", *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return Account(**json.loads(ended.stdout))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """What the processes know of the machine, and nothing of costs."""
    return tmp_path / "cache"


def test_the_compiled_step_trains_within_a_limit_of_which_the_eager_loop_dies(disk_folder: Path, cache: Path) -> None:
    """The limit is one: who asks first beyond it gives up, torch's allocator or oneDNN's, and not a step is done.

    The compiled step takes what it was given, gives the bits of eager, and leaves nothing on the disk.
    """
    free = trained("eager", disk_folder, cache)
    assert free.died_of == ""
    account = trained("eager", disk_folder, cache, limit_bytes=BUDGET_BYTES + COUNTED_BYTES)
    assert any(words in account.died_of for words in REFUSED_MEMORY), account.died_of
    assert account.losses == []
    account = trained("outgrow", disk_folder, cache, limit_bytes=BUDGET_BYTES + COUNTED_BYTES)
    assert account.died_of == ""
    assert account.losses == free.losses
    assert max(account.process_bytes) <= BUDGET_BYTES
    assert account.left_in_folder == []
