"""What was compiled is kept in a folder, and what cannot be read there is made anew."""

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import numpy as np
from outgrow.planning.search.heights import height, heights_of
print(height(heights_of(np.array([3, 5])), 1))
"""


def printed(folder: Path) -> str:
    """Return what a process says that keeps what it compiles in a folder."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    process = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True, env=environment)
    return process.stdout.strip()


def test_a_damaged_cache_stops_nobody(tmp_path: Path) -> None:
    """Empty and truncated files, as a power cut leaves them."""
    assert printed(tmp_path) == "5"
    kept = sorted(path for path in tmp_path.rglob("*.nb?") if path.is_file())
    assert kept
    for at, path in enumerate(kept):
        path.write_bytes(path.read_bytes()[:10] if at % 2 else b"")
    assert printed(tmp_path) == "5"
    assert all(path.stat().st_size > 10 for path in kept if path.exists() and path.suffix == ".nbi")
