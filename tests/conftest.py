"""A folder on a real disk, since spill files do not go to memory; Ctrl-C, whatever started the tests; one compiler.

Tests with a cache folder of their own, and processes that they start, still share what numba compiled. Of several
workers each takes its share of the cores. The garbage collector looks past what is older than a test. Generated
examples are the same in every run: `make hunt` looks for new ones.
"""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

import pytest
import torch
from hypothesis import settings

from outgrow.errors import TierFailure
from outgrow.frontends.user.unseen import escapes
from outgrow.planning.compiled import folder
from outgrow.planning.search import search
from outgrow.runtime.tiers import DiskTier, default_offload_dir

if TYPE_CHECKING:
    from outgrow.frontends.parts.shared_budget import Shared

collect_ignore = ["pretend_gpu"]  # Commands, not tests: they need what nothing else does.
os.environ.setdefault("NUMBA_CACHE_DIR", str(folder()))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if WORKERS > 1:
    torch.set_num_threads(max(1, torch.get_num_threads() // WORKERS))
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile("same")
signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background inherits that it is ignored.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none. What looks at all objects comes first, when there are few."""
    items.sort(key=lambda item: item.get_closest_marker("nothing_frozen") is None)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="torch finds no GPU of CUDA"))


@pytest.fixture(autouse=True)
def _older_objects_frozen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there before a test is long, and holds nothing of the test: neither the collector nor outgrow looks."""
    if request.node.get_closest_marker("nothing_frozen"):
        gc.unfreeze()
        return
    gc.collect()
    gc.freeze()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)  # which counts, and that takes long
    monkeypatch.setattr(escapes, "_reached", list)


@pytest.fixture(autouse=True, scope="session")
def quick_rates() -> None:
    """What stands in for a GPU takes seconds to multiply matrices of the size that tells the rate of a GPU."""
    from outgrow.frontends.preparing import measure

    if not torch.cuda.is_available():
        measure._MATRIX_BESIDE = 512


@pytest.fixture
def plans_found_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step computes does not depend on how long its plan was looked for."""
    monkeypatch.setattr(search, "_MOST_TRIALS", 500)


@pytest.fixture
def several_threads() -> Iterator[None]:
    """Threads among which kernels share their work: they sum in another order, and other kernels are chosen."""
    yield from _threads(2)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors are not worth a second thread."""
    yield from _threads(1)


def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


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


@pytest.fixture
def planned_parts(monkeypatch: pytest.MonkeyPatch, plans_found_quickly: None) -> None:  # noqa: ARG001
    """Parts run as planned, however much room there is, and their plans are found quickly."""
    from outgrow.frontends import within_budget

    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> "Callable[[Shared], int]":
    """How often a run of some parts has begun to wait for its backward pass, by what they share."""
    from outgrow.frontends.parts.passes import Waiting

    found, wait = list["ref[Shared]"](), Waiting.wait

    def noted(waiting: Waiting) -> None:
        found.append(ref(waiting.shared))
        wait(waiting)

    monkeypatch.setattr(Waiting, "wait", noted)
    return lambda shared: sum(item() is shared for item in found)


@pytest.fixture
def parts_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned_parts: None) -> Iterator[None]:  # noqa: ARG001
    """No plans of parts are known, none is left, and they run as planned."""
    from outgrow.frontends import dynamo

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    dynamo.forget()
