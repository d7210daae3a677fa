"""What does one want to know first of a GPU? Facts on which the runtime rests, each told as soon as it is known.

    context      bytes of the device that are gone once there is a context, and after a matrix product and a convolution
    directed     whether torch's allocator can be directed there, and what was said if not
    pages        seconds to take and to show 1 GiB of them, and those of a sum, a product and copies in pages that are
                 shown in any order, over those in one tensor; whether copies to one half of a page leave alone what
                 kernels do with the other, which they see at another address
    machine      what copies and arithmetic do
    resting      whether kernels, copies and the host agree on what is in locked memory of the host, and how fast a
                 kernel reads it
    operators    of each operator of some small steps: results that are born, those of which the allocation was found
                 when it was rehearsed, its scratch (the workspace of convolutions is there), and its seconds
    overlap      seconds of products, of copies both ways, and of both beside each other
    runs         the same steps within a budget: bits, and the operators whose results were born elsewhere; attention of
                 cuDNN is not deterministic, so there the losses tell
    below        what `resting` asks of a file that is mapped, where the device reads memory that is not locked

One that fails has its error in its place. Those that are told by a GPU alone come before steps are rehearsed and run,
which takes long; but a process in which a device fails at `below` may never do anything again, so that comes last.
Where the device does nothing more, or a process does not end, another process goes on with what comes next.
"""

import math
import random
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from gpu_grounds import Ground
from gpu_rows import Asked, Tell, be_deterministic, outgrown
from gpu_trainings import step_of
from torch import nn

from outgrow.analysis.timeline import Lane
from outgrow.frontends.preparing.measure import machine_of
from outgrow.frontends.preparing.rehearsal import Rehearsal, Rehearsed
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.ir.graph import Graph, Op
from outgrow.runtime.below import FileBelow
from outgrow.runtime.device import BesideHost
from outgrow.runtime.directed import install
from outgrow.runtime.flights import StreamLink
from outgrow.runtime.memory import bytes_on
from outgrow.runtime.pages import Pages
from outgrow.runtime.planned_arena import PlannedMemory
from outgrow.runtime.pool import HostPool
from outgrow.runtime.tiers import DiskTier, offload_folder

_PAGED_BYTES, _MAPPED_BYTES = 1 << 30, 64 << 20
OVER = 4.0
"""The runs are so many times over their budgets, or at their floors."""
SAMPLES: Mapping[str, Asked] = {
    "convolutions": Asked("convolutions", {"batch": 512}, OVER),
    "attention, flash": Asked("attention", {"bits": 16, "batch": 64}, OVER),
    "attention, efficient": Asked("attention", {"bits": 32, "batch": 64}, OVER),
    "attention, math": Asked("attention", {"bits": 16, "is_math": 1, "batch": 64}, OVER),
    "attention, cudnn": Asked("attention", {"bits": 16, "is_cudnn": 1, "batch": 64}, OVER, deterministic="warn"),
}
SMALL_SAMPLES: Mapping[str, Asked] = {"mlp": Asked("mlp", {"layers": 2}, OVER)}


def checked(ground: Ground, tell: Tell, told: Collection[str] = (), *, is_smoke: bool) -> None:
    """Tell every fact that is not `told`, or what went wrong. Raises `SystemExit` if the device does nothing more."""
    samples = SMALL_SAMPLES if is_smoke else SAMPLES
    facts: dict[str, Callable[[], object]] = {
        "context": lambda: context(ground),
        "directed": lambda: directed(ground),
        "pages": lambda: pages(ground),
        "overlap": lambda: overlap(ground),
        "machine": lambda: asdict(machine_of(ground.beside())),
        "resting": lambda: resting(ground),
        **{f"operators: {name}": lambda asked=asked: operators(ground, asked) for name, asked in samples.items()},
        **{f"run: {name}": lambda asked=asked: run(ground, asked) for name, asked in samples.items()},
        "below": lambda: below(ground),
    }
    for name in [name for name in facts if name not in told]:
        tell(**{name: {"error": "the process ended"}})
        be_deterministic(samples[name.partition(": ")[2]].deterministic if ": " in name else "error")
        begin = time.perf_counter()
        try:
            found = facts[name]()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the fact
            found = {"error": f"{type(error).__name__}: {error}"[:500]}
        tell(**{name: found, f"{name}, seconds": time.perf_counter() - begin})
        _require(ground)


def _require(ground: Ground) -> None:
    """Raise `SystemExit` if the device does nothing more, as after an access to memory that is not there."""
    try:
        ground.wait()
    except RuntimeError as error:
        raise SystemExit(f"the device does nothing more: {error}") from error


def context(ground: Ground) -> dict[str, int | None]:
    """Return the bytes of the device that are in use: before a context, with one, and after the first kernels."""
    if ground.device.type != "cuda":
        return {}
    found: dict[str, int | None] = {"before": _in_use_by_all()}

    def note(name: str) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(ground.device)
        found[name] = total - free - torch.cuda.memory_reserved(ground.device)

    torch.cuda.init()
    note("with a context")
    found["total"] = torch.cuda.mem_get_info(ground.device)[1]
    matrix = torch.ones(1024, 1024, device=ground.device, dtype=torch.bfloat16)
    torch.mm(matrix, matrix)
    note("after a matrix product")
    nn.functional.conv2d(
        torch.ones(8, 64, 56, 56, device=ground.device), torch.ones(64, 64, 3, 3, device=ground.device)
    )
    note("after a convolution")
    return found


def _in_use_by_all() -> int | None:
    """Return what the driver says is in use; None where it cannot be asked."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
        return int(told.splitlines()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def directed(ground: Ground) -> dict[str, object]:
    """Return whether the allocator can be told where results go, and what was said of it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        works = install(ground.device)
    return {"works": works, "said": [str(item.message) for item in said]}


def pages(ground: Ground) -> dict[str, float | bool]:
    """Return whether the driver maps pages, how long that takes, and how much slower kernels and copies are in them."""
    device = ground.beside()
    found = device.pages()
    if found is None:
        return {"works": False}
    size = _PAGED_BYTES if ground.device.type == "cuda" else found.page_bytes * 8
    begin = time.perf_counter()
    found.have(size)
    taken = time.perf_counter()
    order = list(range(size // found.page_bytes))
    random.Random(0).shuffle(order)
    address = found.show(order)
    shown = time.perf_counter()
    stitched = bytes_on(ground.device, address, size).view(torch.bfloat16)
    whole = torch.zeros_like(stitched)
    stitched.zero_()

    def product(tensor: torch.Tensor) -> torch.Tensor:
        side = math.isqrt(tensor.numel() // 2)
        one, other = tensor[: side * side], tensor[side * side : 2 * side * side]
        return one.view(side, side) @ other.view(side, side)

    def add(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.add_(1)

    pool, moved = HostPool(device.torch_device, device.lock), min(size, _MAPPED_BYTES)
    pool.grow(pool.seam_bytes + moved)
    there = pool.bytes(pool.seam_bytes, moved)

    def copy_out(tensor: torch.Tensor) -> None:
        device.streams.copy(Lane.OUT, there, tensor.view(torch.uint8)[:moved])
        device.streams.settle()

    def copy_in(tensor: torch.Tensor) -> None:
        device.streams.copy(Lane.IN, tensor.view(torch.uint8)[:moved], there)
        device.streams.settle()

    def slower(work: Callable[[torch.Tensor], object]) -> float:
        return _seconds(ground, lambda: work(stitched)) / _seconds(ground, lambda: work(whole))

    found_slower = {work.__name__: slower(work) for work in (add, product, copy_out, copy_in)}
    told = {"take_seconds": taken - begin, "show_seconds": shown - taken, "halves": _halves(ground, device, found)}
    found.close()
    return {"works": True, **told, **found_slower}


def _halves(ground: Ground, device: BesideHost, pages: Pages) -> bool:
    """Whether copies to one half of a page and kernels on the other, by two addresses and at once, go well."""
    size, rounds = pages.page_bytes // 2, 64
    pool = HostPool(device.torch_device, device.lock)
    begin = pool.seam_bytes
    pool.grow(begin + size)
    source = pool.bytes(begin, size)
    source.copy_(torch.arange(size, dtype=torch.int64).to(torch.uint8))
    copied = bytes_on(ground.device, pages.show([0]), size)
    summed = bytes_on(ground.device, pages.show([0]) + size, size)
    copied.zero_()
    summed.zero_()
    ground.wait()
    for _ in range(rounds):
        device.streams.copy(Lane.IN, copied, source)
        summed.add_(1)
    device.streams.settle()
    ground.wait()
    return torch.equal(copied.cpu(), source) and torch.equal(summed.cpu(), torch.full_like(source, rounds))


def resting(ground: Ground) -> dict[str, object]:
    """Return what is seen of a tensor of the device whose memory is locked memory of the host, and how fast."""
    device = ground.beside()
    pool = HostPool(device.torch_device, device.lock)
    begin = pool.seam_bytes
    pool.grow(begin + _MAPPED_BYTES)
    rests = torch.empty(0, dtype=torch.uint8, device=ground.device)
    rests.set_(pool.mapped(begin, _MAPPED_BYTES, None))
    numbers = rests.view(torch.int32)
    host = pool.bytes(begin, _MAPPED_BYTES).view(torch.int32)
    host.copy_(torch.arange(host.numel(), dtype=torch.int32))
    numbers.add_(3)
    ground.wait()
    written = torch.arange(3, host.numel() + 3, dtype=torch.int32)
    return {"is_locked": pool.is_locked, "the host sees it": torch.equal(host, written)} | _seen(numbers, written)


def _seen(rests: torch.Tensor, written: torch.Tensor) -> dict[str, object]:
    """Return whether each way to read a tensor that rests finds what was written, or its error, and its seconds."""
    total = written.sum(dtype=torch.int64)
    ways: Mapping[str, Callable[[], bool]] = {
        "a first sum": lambda: torch.equal(rests.sum(dtype=torch.int64).cpu(), total),
        "a sum": lambda: torch.equal(rests.sum(dtype=torch.int64).cpu(), total),
        "a clone": lambda: torch.equal(rests.clone().cpu(), written),
        "a copy": lambda: torch.equal(rests.cpu(), written),
        "an item": lambda: rests[5].item() == written[5].item(),
    }
    found: dict[str, object] = {}
    for name, way in ways.items():
        begin = time.perf_counter()
        try:
            found[name] = way()
        except RuntimeError as error:
            found[name] = str(error)[:200]
        found[f"{name}, seconds"] = time.perf_counter() - begin
    return found


def overlap(ground: Ground) -> dict[str, float]:
    """Return how much slower products and copies are beside each other than by themselves."""
    device = ground.beside()
    pool = HostPool(device.torch_device, device.lock)
    begin, size = pool.seam_bytes, _MAPPED_BYTES
    pool.grow(begin + 2 * size)
    link = StreamLink(device.streams, device.torch_device, pool)
    blocks = [torch.zeros(size, dtype=torch.uint8, device=ground.device) for _ in range(2)]
    side = 4096 if ground.device.type == "cuda" else 64
    matrix = torch.ones(side, side, device=ground.device, dtype=torch.bfloat16)

    def copies() -> None:
        for lane, at in ((Lane.OUT, 0), (Lane.IN, 1)):
            link.submit(lane, f"block {at}", size, begin + at * size, blocks[at].data_ptr())

    def products() -> None:
        for _ in range(16):
            torch.mm(matrix, matrix)

    def both() -> None:
        copies()
        products()

    def settled(work: Callable[[], None]) -> float:
        def whole() -> None:
            work()
            link.settle()

        return _seconds(ground, whole)

    alone = {"products": settled(products), "copies": settled(copies)}
    link.settle()
    together = settled(both)
    link.close()
    return {**alone, "both": together, "both_over_larger": together / max(alone.values())}


def _seconds(ground: Ground, work: Callable[[], object]) -> float:
    """Return the median seconds of some work, to its end."""
    times: list[float] = []
    for _ in range(7):
        ground.wait()
        before = time.perf_counter()
        work()
        ground.wait()
        times.append(time.perf_counter() - before)
    return median(times)


def below(ground: Ground) -> dict[str, object]:
    """Return whether a kernel reads a mapping of a file, with the bytes that were written, and how fast."""
    device = ground.beside()
    if not device.reads_pages:
        return {"reads_pages": False}
    written = torch.randint(256, (_MAPPED_BYTES,), dtype=torch.uint8)
    with DiskTier(offload_folder(None), _MAPPED_BYTES) as file:
        file.write(0, written.data_ptr(), _MAPPED_BYTES)
        mapped = torch.empty(0, dtype=torch.uint8, device=ground.device)
        mapped.set_(FileBelow(device.torch_device, file).mapped(0, _MAPPED_BYTES, None))
        return {"reads_pages": True} | _seen(mapped, written)


def operators(ground: Ground, asked: Asked) -> dict[str, dict[str, float]]:
    """Return what the rehearsal of a step finds, by operator; bytes and seconds are the largest."""
    captured = _captured(ground, asked)
    rehearsal = Rehearsal(ground.beside(), install(ground.device))
    parts = rehearsal.of(captured.graph, captured.elsewhere)
    found: dict[str, dict[str, float]] = {}
    for op, born in _births(captured.graph):
        part: Rehearsed = parts[op.name]
        figures = found.setdefault(op.operator, {"ops": 0, "born": 0, "found": 0, "scratch_bytes": 0, "seconds": 0})
        figures["ops"] += 1
        figures["born"] += sum(captured.graph.values[name].storage not in captured.elsewhere for name in born)
        figures["found"] += len(part.results)
        figures["scratch_bytes"] = max(figures["scratch_bytes"], part.scratch_bytes)
        figures["seconds"] = max(figures["seconds"], part.seconds)
    return found


def run(ground: Ground, asked: Asked) -> dict[str, Any]:
    """Return the row of a step within a budget, and how often results of which operator were born elsewhere."""
    graph = _captured(ground, asked).graph
    row: dict[str, Any] = {}
    with _misplaced() as storages:
        outgrown(ground, asked, row.update)
    makers = {graph.values[name].storage: op.operator for op, born in _births(graph) for name in born}
    operators = Counter(makers.get(storage, storage) for storage in storages)
    return {**{key: row[key] for key in sorted(row) if not key.startswith("in_core_")}, "misplaced_of": operators}


@contextmanager
def _misplaced() -> Iterator[list[str]]:
    """Yield a list of the storages that were not born where they were to be."""
    storages: list[str] = []
    born = PlannedMemory.born

    def noted(memory: PlannedMemory, storage: str, *rest: Any) -> torch.Tensor:
        before = memory.arena.misplaced
        found = born(memory, storage, *rest)
        storages.extend([storage] * (memory.arena.misplaced - before))
        return found

    with patch.object(PlannedMemory, "born", noted):
        yield storages


def _captured(ground: Ground, asked: Asked) -> Captured:
    training = asked.made(ground.device)
    batch = tuple(item.to(ground.device) for item in training.batch)
    return capture(step_of(training.loss, training.optimizer), [training.model], [training.optimizer], batch)


def _births(graph: Graph) -> Iterator[tuple[Op, list[str]]]:
    """Yield each op with those of its results with which a storage is born."""
    for op in graph.ops:
        names = [name for name in op.results if name is not None]
        born = [
            name
            for name in names
            if graph.values[name].version == 0 and graph.storages[graph.values[name].storage].size_bytes
        ]
        yield op, list({graph.values[name].storage: name for name in born}.values())
