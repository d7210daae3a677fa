"""What does this machine do? Rates of its device and link, and the observed costs of ops, kept between runs.

Costs are observed while a step runs (`runtime.execute`), keyed by the op's signature (`analysis.cost`), and kept
in one JSON file for each machine: processor, threads, torch version and allocator setting. A damaged or foreign
file is ignored and written anew; it is a cache.
"""

import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from outgrow.analysis.cost import Cost
from outgrow.ir.machine import Device, Machine
from outgrow.runtime import arena
from outgrow.runtime.links import measure_link

_MATRIX = 1024
_VECTOR_BYTES = 32 << 20


def this_machine(offload_dir: Path) -> Machine:
    """Return this machine with measured rates; takes about a second."""
    return Machine(name=machine_name(), device=measure_device(), link=measure_link(offload_dir))


def machine_name() -> str:
    """Return a name that changes with whatever changes the cost of an op."""
    return f"{platform.machine()}-{_processor()}-{torch.get_num_threads()}threads-torch{torch.__version__}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "cpu"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return "-".join(names[0].split()) if names else "cpu"


def measure_device() -> Device:
    """Return flop/s of a matrix product and bytes/s of an elementwise op, medians of three."""
    left = torch.ones(_MATRIX, _MATRIX)
    vector = torch.ones(_VECTOR_BYTES // 4)
    product = _median_seconds(lambda: torch.mm(left, left))
    stream = _median_seconds(lambda: vector.add_(1.0))
    return Device(
        "cpu",
        2.0 * _MATRIX**3 / product,
        2.0 * _VECTOR_BYTES / stream,
        places_results=arena.is_available(),
    )


def _median_seconds(work: object) -> float:
    assert callable(work), "work is a function without arguments"
    times: list[float] = []
    for _ in range(3):
        begin = perf_counter()
        work()
        times.append(perf_counter() - begin)
    return median(times)


@dataclass
class CostCache:
    """Observed costs by signature, in memory and in a file of the user's cache folder."""

    path: Path
    known: dict[str, Cost] = field(default_factory=dict[str, Cost])

    def add(self, observed: Mapping[str, Cost]) -> None:
        """Keep the newest seconds and the largest workspace of each signature, and write the file."""
        for key, cost in observed.items():
            old = self.known.get(key)
            workspace = max(cost.workspace_bytes, old.workspace_bytes if old else 0)
            self.known[key] = Cost(cost.seconds, workspace, measured=True)
        _write_atomically(self.path, json.dumps({key: asdict(cost) for key, cost in self.known.items()}))


def open_cost_cache() -> CostCache:
    """Return the cache of this machine's observed costs."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outgrow" / "costs"
    setting = os.environ.get("THP_MEM_ALLOC_ENABLE", "0")
    digest = sha256(f"{machine_name()} {setting}".encode()).hexdigest()[:16]
    path = folder / f"{digest}.json"
    try:
        entries = json.loads(path.read_text())
        known = {key: Cost(**entry) for key, entry in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        known = {}
    return CostCache(path, known)


def _write_atomically(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
    except OSError:
        return  # A cache that cannot be written is measured again next time.
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).replace(path)
