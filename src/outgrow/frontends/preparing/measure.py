"""What does this machine do? Rates of its device and link, and the observed costs of ops, kept between runs.

Costs are observed while a step runs (`runtime.execute`), by the op's key (`analysis.cost`), and kept
in one JSON file for each machine: processor, threads, torch version and allocator setting. A damaged or foreign
file is ignored and written anew; it is a cache.
"""

import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256
from math import isqrt
from pathlib import Path
from statistics import median
from threading import Lock
from time import perf_counter

import torch

from outgrow.allocator import VARIABLE
from outgrow.analysis.cost import Cost, neediest
from outgrow.analysis.timeline import Lane
from outgrow.files import cache_folder, write_to_cache
from outgrow.ir.machine import Device, Machine
from outgrow.planning.problem import silent
from outgrow.runtime import arena, flights
from outgrow.runtime.device import BesideHost
from outgrow.runtime.flights import measure_streams
from outgrow.runtime.links import MEASURED_BYTES, measure_link
from outgrow.units import format_bytes

_MATRIX = 1024
_VECTOR_BYTES = 32 << 20
_MATRIX_BESIDE = 4096
_VECTOR_BYTES_BESIDE = 1 << 30
_LEAST_BYTES_BESIDE = 4 << 20
_TIMES = 3
_MOST_COSTS = 1 << 12


@dataclass(frozen=True, slots=True)
class Care:
    """How long arithmetic and memory are each measured, and how often copies are repeated; medians are taken."""

    seconds: float = 0.0
    copies: int = 3


_here: dict[tuple[str, int | None], Machine] = {}
"""Machines that were measured, by name and by the number of the disk."""


def this_machine(offload_dir: Path) -> Machine:
    """Return this machine with its rates, which a process measures once for each disk."""
    key = machine_name(), offload_dir.stat().st_dev if offload_dir.exists() else None
    if key not in _here:
        _here[key] = measured_machine(offload_dir)
    return _here[key]


def measured_machine(
    offload_dir: Path, care: Care = Care(), progress: Callable[[str, float], None] = silent
) -> Machine:
    """Return this machine, measured now; takes about a second, unless more care is asked for."""
    progress("measure device", 0.0)
    device = measure_device(care)
    progress("measure link", 0.0)
    return Machine(name=machine_name(), device=device, link=measure_link(offload_dir, care.copies))


_HOW_ANY = {
    "seconds_per_op": "not measured: an assumption for every op",
    "half_duplex": "measured: whether copies both ways at once take about as long as one after the other",
}
"""How the same fields of every machine are found."""


def how_measured(care: Care) -> dict[str, str]:
    """Return how `measured_machine` finds each field of device and link, or that it does not measure it."""
    over = f"median over {care.seconds:g} s"
    copies = f"median of {care.copies} copies of {format_bytes(MEASURED_BYTES)}"
    return {
        **_HOW_ANY,
        "flops_per_second": f"measured: fp32 product of two {_MATRIX} x {_MATRIX} matrices, {over}",
        "bytes_per_second": f"measured: 1 added to {format_bytes(_VECTOR_BYTES)} of fp32, read and written, {over}",
        "needs_workspace": "not measured: convolutions are taken to need some",
        "out_bytes_per_second": f"measured: {copies} from memory to the spill file, direct I/O, latency deducted",
        "in_bytes_per_second": f"measured: {copies} back from it",
        "latency_seconds": f"measured: one page, {care.copies} times each way, median",
    }


def graphics_card() -> str | None:
    """Return the name of this machine's GPU; None if torch sees none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


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


def measure_device(care: Care) -> Device:
    """Return flop/s of a matrix product and bytes/s of an elementwise op: medians of three runs or more."""
    left = torch.ones(_MATRIX, _MATRIX)
    vector = torch.ones(_VECTOR_BYTES // 4)
    product = _median_seconds(lambda: torch.mm(left, left), care.seconds)
    stream = _median_seconds(lambda: vector.add_(1.0), care.seconds)
    return Device(
        _processor(),
        2.0 * _MATRIX**3 / product,
        2.0 * _VECTOR_BYTES / stream,
        places_results=arena.is_available(),
        reorders_gradients="AVX512" not in torch.backends.cpu.get_cpu_capability(),
    )


def machine_of(device: BesideHost, most_bytes: int | None = None) -> Machine:
    """Return the machine of a device with streams, its rates measured; takes a second or two, at most `most_bytes`.

    Raises `TierFailure` where the host has no memory for copies.
    """
    room = 2 * _VECTOR_BYTES_BESIDE if most_bytes is None else max(most_bytes, _LEAST_BYTES_BESIDE)
    device.give_back()
    link = measure_streams(device.streams, device.torch_device, device.lock, min(flights.MEASURED_BYTES, room // 2))
    device.give_back()
    rates = _device_rates(device, room)
    device.give_back()
    return Machine(name=device.name, device=rates, link=link)


def how_device_measured() -> dict[str, str]:
    """Return how `machine_of` finds each field of device and link, or that it does not measure it."""
    copies = f"median of 3 copies of {format_bytes(flights.MEASURED_BYTES)}"
    return {
        **_HOW_ANY,
        "flops_per_second": f"measured: fp32 product of two {_MATRIX_BESIDE} x {_MATRIX_BESIDE} matrices, median of 3",
        "bytes_per_second": f"measured: 1 added to {format_bytes(_VECTOR_BYTES_BESIDE)} of fp32, read and written",
        "needs_workspace": "not measured: what ops need is seen when a step is rehearsed",
        "out_bytes_per_second": f"measured: {copies} from the device to locked memory of the host, latency deducted",
        "in_bytes_per_second": f"measured: {copies} back from it",
        "latency_seconds": "measured: 4 KiB, 3 times each way, median",
    }


def _device_rates(device: BesideHost, most_bytes: int) -> Device:
    """Return the rates of a device with streams, as `measure_device` does of a CPU; its workspaces are seen later."""
    side, size = min(_MATRIX_BESIDE, isqrt(most_bytes // 16)), min(_VECTOR_BYTES_BESIDE, most_bytes // 2)
    product = _product_seconds(device, side)
    stream = _addition_seconds(device, size)
    return Device(
        device.name,
        2.0 * side**3 / product,
        2.0 * size / stream,
        needs_workspace=False,
        places_results=False,
    )


def _product_seconds(device: BesideHost, side: int) -> float:
    left = torch.ones(side, side, device=device.torch_device)
    return _seconds_on(device, lambda: torch.mm(left, left))


def _addition_seconds(device: BesideHost, size_bytes: int) -> float:
    vector = torch.ones(size_bytes // 4, device=device.torch_device)
    return _seconds_on(device, lambda: vector.add_(1.0))


def _seconds_on(device: BesideHost, work: Callable[[], object]) -> float:
    times: list[float] = []
    with torch._C._DisableAutocast():
        for _ in range(_TIMES + 1):  # the first one loads the kernel
            begin = device.streams.mark(Lane.COMPUTE)
            work()
            times.append(device.streams.mark(Lane.COMPUTE).seconds_since(begin))
    return median(times[1:])


def _median_seconds(work: Callable[[], object], least_seconds: float) -> float:
    times: list[float] = []
    with torch._C._DisableAutocast():
        while len(times) < _TIMES or sum(times) < least_seconds:
            begin = perf_counter()
            work()
            times.append(perf_counter() - begin)
    return median(times)


@dataclass(frozen=True)
class CostCache:
    """Observed costs by key, in memory and in a file of the user's cache folder, which other processes write as well.

    Of more than `_MOST_COSTS` keys the file forgets those that were not observed for the longest.
    """

    path: Path
    known: dict[str, Cost] = field(default_factory=dict[str, Cost])
    _lock: Lock = field(default_factory=Lock)

    def add(self, observed: Mapping[str, Cost]) -> None:
        """Keep the newest seconds and the largest workspace of each key, and write the file."""
        with self._lock:
            for key, cost in observed.items():
                old = self.known.pop(key, None)
                self.known[key] = neediest(cost.seconds, [cost, old] if old else [cost])
            others = {key: cost for key, cost in _costs_in(self.path).items() if key not in self.known}
            kept = [*others.items(), *self.known.items()][-_MOST_COSTS:]
            write_to_cache(self.path, json.dumps({key: asdict(cost) for key, cost in kept}))


def open_cost_cache(name: str | None = None) -> CostCache:
    """Return the cache of the costs observed on the machine of this name (None: this one, on its CPU).

    All steps of a process on one machine have the same.
    """
    setting = os.environ.get(VARIABLE, "0")
    digest = sha256(f"{name or machine_name()} {setting}".encode()).hexdigest()[:16]
    return _cache_at(cache_folder("costs") / f"{digest}.json")


@cache
def _cache_at(path: Path) -> CostCache:
    return CostCache(path, _costs_in(path))


def _costs_in(path: Path) -> dict[str, Cost]:
    """Return the costs in a file; none if it is not there, or damaged."""
    try:
        return {key: Cost(**entry) for key, entry in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
