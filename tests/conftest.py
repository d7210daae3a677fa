"""A folder on a real disk, since spill files do not go to memory; and Ctrl-C, whatever started the tests."""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outgrow.errors import TierFailure
from outgrow.runtime.tiers import DiskTier, default_offload_dir

signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background inherits that it is ignored.


@pytest.fixture
def disk_folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder that takes spill files: pytest's own, or one in the default folder if it is memory."""
    try:
        DiskTier(tmp_path, 4096).close()
    except TierFailure:
        yield from _in_the_default_folder()
    else:
        yield tmp_path


def _in_the_default_folder() -> Iterator[Path]:
    parent = default_offload_dir()
    try:
        DiskTier(parent, 4096).close()
    except TierFailure as failure:
        pytest.skip(f"no disk for spill files: {failure}")
    folder = Path(tempfile.mkdtemp(prefix="test-", dir=parent))
    yield folder
    shutil.rmtree(folder)
