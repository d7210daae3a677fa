"""What was compiled is kept in a folder, and what cannot be read there is made anew."""

import os
import subprocess
import sys
from pathlib import Path

from outgrow.planning.search import heights

CODE = """
import numpy as np
from outgrow.planning.search.heights import height, heights_of
print(height(heights_of(np.array([3, 5])), 1))
"""


FULL = """
import errno, os
from numba.core.caching import IndexDataCacheFile

def save(self, key, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

IndexDataCacheFile.save = save
"""


def ran(folder: Path, code: str = CODE) -> "subprocess.CompletedProcess[str]":
    """Run a process that keeps what it compiles in a folder."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)


def printed(folder: Path, code: str = CODE) -> str:
    """Return what a process says that keeps what it compiles in a folder."""
    return ran(folder, code).stdout.strip()


def test_a_damaged_cache_stops_nobody(tmp_path: Path) -> None:
    """Empty and truncated files, as a power cut leaves them."""
    assert printed(tmp_path) == "5"
    kept = sorted(path for path in tmp_path.rglob("*.nb?") if path.is_file())
    assert kept
    for at, path in enumerate(kept):
        path.write_bytes(path.read_bytes()[:10] if at % 2 else b"")
    assert printed(tmp_path) == "5"
    assert all(path.stat().st_size > 10 for path in kept if path.exists() and path.suffix == ".nbi")


def test_a_full_disk_stops_nobody(tmp_path: Path) -> None:
    """What is compiled is not kept."""
    assert printed(tmp_path, FULL + CODE) == "5"


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    """Here a file is in its place, as a home that cannot be written may be; it is told once, and nothing is kept."""
    place = tmp_path / "file"
    place.write_text("")
    beside = sorted(Path(heights.__file__).parent.rglob("*.nb?"))
    process = ran(place / "kept")
    assert process.stdout.strip() == "5"
    assert process.stderr.count("compiles the planners anew") == 1
    assert process.stderr.startswith("<string>:3: Remark"), "the line that imported outgrow"
    assert sorted(Path(heights.__file__).parent.rglob("*.nb?")) == beside
