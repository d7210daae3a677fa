"""What is a device beside the host? Streams, memory that is counted, and a driver that locks pages of the host.

`Cuda` is one. The tests have another, whose memory is the host's own and whose streams are threads.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar, Protocol, TypeVar

import torch

from outgrow.errors import DeviceFull, InvalidQuantity
from outgrow.remarks import remark
from outgrow.runtime.pages import Pages, cuda_pages, reads_pages
from outgrow.runtime.pages import taken_bytes as pages_taken_bytes
from outgrow.runtime.pool import locked_by_cuda
from outgrow.runtime.streams import CudaStreams, Streams
from outgrow.units import format_bytes, round_up

T = TypeVar("T")
_BLOCK_BYTES, _SMALL_BYTES, _LARGE_BYTES = 512, 1 << 20, 10 << 20
_SMALL_SEGMENT_BYTES, _SEGMENT_BYTES = 2 << 20, 20 << 20
_BUSY_CYCLES = 2_000_000
"""About a millisecond."""
_COUNTING = ("native", "cudaMallocAsync")
"""Torch's names of the allocators that tell what they have reserved."""
_UNCOUNTED = (
    "Torch's allocator keeps no memory of {} for later (PYTORCH_NO_CUDA_MEMORY_CACHING), and counts none, so tensors "
    "beside the arena are not held against the budget."
)


class BesideHost(Protocol):
    """A device, and what the process takes of it."""

    torch_device: torch.device
    unseen_bytes: int
    """About what it takes for itself beside the tensors of a step, until a run has shown it."""
    slack_bytes: int
    """What it may take beyond what a run has shown."""

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that it has, whoever takes them."""
        ...

    @property
    def reads_pages(self) -> bool:
        """Whether it reads memory of the host that is not locked."""
        ...

    @property
    def streams(self) -> Streams:
        """Its streams, used from one thread at a time."""
        ...

    def more_streams(self) -> Streams:
        """Return other streams for copies, used from a thread each."""
        ...

    @property
    def name(self) -> str:
        """A name that changes with whatever changes what an op costs."""
        ...

    def lock(self, address: int, size_bytes: int) -> Callable[[], None] | str:
        """Lock pages of the host, as `pool.LockPages` says."""
        ...

    def failure(self) -> str | None:
        """Return what the device says where it does nothing any more for this process; the host waits for it."""
        ...

    def taken_bytes(self) -> int:
        """Return the bytes of the device that the process takes now."""
        ...

    def cached_bytes(self) -> int:
        """Return the bytes of these that serve the next tensors, since nobody has them."""
        ...

    def high_water_bytes(self) -> int:
        """Return the most bytes that it took since the mark was last reset."""
        ...

    def reset_high_water(self) -> None:
        """Let the mark begin again from what is taken now."""
        ...

    def give_back(self) -> None:
        """Give back what is taken and not in use; the host waits for the device. Libraries may take theirs anew."""
        ...

    def give_back_all(self) -> None:
        """Give back what is taken and not in use, and leave libraries without what they keep until they ask again."""
        ...

    def settle_libraries(self) -> None:
        """Let libraries take what they keep for this thread and the current stream, if they have not yet."""
        ...

    def keep_busy(self) -> None:
        """Give operators' stream a moment to pass, in which the host can get ahead of it."""
        ...

    def refusals(self) -> int:
        """Return how often the device has refused to give as much memory as was asked for, also by libraries."""
        ...

    def taken_by(self, sizes_bytes: Iterable[int]) -> int:
        """Return the bytes that are taken for tensors of these sizes, about, where each has memory of its own."""
        ...

    def room(self, size_bytes: int) -> torch.Tensor:
        """Return new memory, uint8[size_bytes]. Raises `DeviceFull`."""
        ...

    def pages(self) -> Pages | None:
        """Return pages that can be shown in any order, none taken yet; None where the driver cannot do this."""
        ...

    def full(self, size_bytes: int) -> DeviceFull:
        """Return the error that says that `size_bytes` are needed and not free."""
        ...


class _Settled(threading.local):
    """The GPUs and streams that have workspaces of this thread, since which clearing. It ends with its thread."""

    def __init__(self) -> None:
        self.since: dict[tuple[int, int], int] = {}


class Cuda:
    """A GPU. What the process takes of it is what torch's allocator has reserved, and pages: a context is not counted.

    Besides tensors that includes the unused ends of segments, and workspaces of matrix products (32 MiB on Hopper),
    which live on for each thread and stream (up to torch 2.14). A workspace that is made amid other work may split a
    large segment, which then is never given back: so they are made while nothing else is cached, before a step, which
    has no place for them.
    """

    unseen_bytes = 64 << 20
    slack_bytes = _SEGMENT_BYTES + _SMALL_SEGMENT_BYTES
    """One segment of each size: a tensor beside the arena may need a little of a new one."""
    _settled: ClassVar[_Settled] = _Settled()
    _clearings: ClassVar[int] = 0
    """How often all workspaces were given back."""

    def __init__(self, torch_device: torch.device | None = None) -> None:
        """Without a device it is torch's current one."""
        torch.cuda.init()
        index = None if torch_device is None else torch_device.index
        index = torch.cuda.current_device() if index is None else index
        self.torch_device = torch.device("cuda", index)
        self.streams: Streams = CudaStreams(self.torch_device)

    def require_counted(self) -> None:
        """Raise `InvalidQuantity` where an allocator that does not count has taken the place of torch's."""
        allocator = torch.cuda.get_allocator_backend()
        if allocator not in _COUNTING:
            raise InvalidQuantity(
                f"A budget of a GPU is kept by what torch's allocator counts, and the one in its place ({allocator}) "
                "counts nothing. Leave out torch.cuda.memory.change_current_allocator."
            )
        if not _counts(self.torch_device):
            remark(_UNCOUNTED.format(self.torch_device))

    @property
    def memory_bytes(self) -> int:
        return torch.cuda.get_device_properties(self.torch_device).total_memory

    @property
    def reads_pages(self) -> bool:
        return reads_pages(self.torch_device)

    def more_streams(self) -> Streams:
        return CudaStreams(self.torch_device)

    @property
    def name(self) -> str:
        """The GPU, torch, and the settings by which libraries choose their kernels."""
        card = torch.cuda.get_device_name(self.torch_device).replace(" ", "-")
        return f"{card}-torch{torch.__version__}-cuda{torch.version.cuda}-{library_settings()}"

    def lock(self, address: int, size_bytes: int) -> Callable[[], None] | str:
        return locked_by_cuda(address, size_bytes, self.torch_device)

    def failure(self) -> str | None:
        """Asked twice: a failure that the device outlives is told once."""
        told = None
        for _ in range(2):
            try:
                torch.cuda.synchronize(self.torch_device)
            except RuntimeError as error:
                told = str(error).splitlines()[0]
            else:
                return None
        return told

    def taken_bytes(self) -> int:
        return _counted_bytes(self.torch_device, "reserved") + pages_taken_bytes(self.torch_device)

    def cached_bytes(self) -> int:
        return _counted_bytes(self.torch_device, "reserved") - _counted_bytes(self.torch_device, "active")

    def high_water_bytes(self) -> int:
        return _counted_bytes(self.torch_device, "reserved", "peak") + pages_taken_bytes(self.torch_device)

    def reset_high_water(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def give_back(self) -> None:
        self.give_back_all()
        with suppress(torch.OutOfMemoryError):  # state is yet to make room: a step asks again
            self.settle_libraries()

    def give_back_all(self) -> None:
        torch.cuda.synchronize(self.torch_device)
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - torch's manual names it for this
        Cuda._clearings += 1
        torch.cuda.empty_cache()

    def settle_libraries(self) -> None:
        stream = torch.cuda.current_stream(self.torch_device)
        here, now = (stream.device_index, stream.cuda_stream), self._clearings
        if self._settled.since.get(here) == now:
            return
        small = torch.zeros(16, 16, device=self.torch_device, dtype=torch.bfloat16)
        torch.addmm(small[0], small, small)  # of cuBLASLt, which adds a vector to a product
        torch.mm(small, small)  # of cuBLAS
        del small
        self._settled.since[here] = now
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.empty_cache()

    def keep_busy(self) -> None:
        with torch.cuda.device(self.torch_device):
            torch.cuda._sleep(_BUSY_CYCLES)  # noqa: SLF001 - torch's own tests wait so

    def refusals(self) -> int:
        return torch.cuda.memory_stats(self.torch_device).get("num_ooms", 0)

    def taken_by(self, sizes_bytes: Iterable[int]) -> int:
        return segment_bytes(sizes_bytes)

    def room(self, size_bytes: int) -> torch.Tensor:
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device=self.torch_device)
        except torch.OutOfMemoryError as error:
            raise self.full(size_bytes) from error

    def pages(self) -> Pages | None:
        return cuda_pages(self.torch_device)

    def full(self, size_bytes: int) -> DeviceFull:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        share = torch.cuda.get_per_process_memory_fraction(self.torch_device)
        told = f", which may take {format_bytes(int(share * total))} (set_per_process_memory_fraction)"
        most = told if share < 1 else ""
        return DeviceFull(
            f"{format_bytes(size_bytes)} of {self.torch_device} are needed within the budget, and "
            f"{format_bytes(free)} of {format_bytes(total)} are free, {format_bytes(self.taken_bytes())} are taken "
            f"by this process{most}. Nothing has been changed. Lower the memory budget, or end what else uses the "
            "device."
        )


def _counts(device: torch.device) -> bool:
    """Whether torch's allocator counts what it gives. Where it has given nothing yet, it is asked for a byte."""
    if _counted_bytes(device, "reserved"):
        return True
    held = torch.empty(1, dtype=torch.uint8, device=device)
    return _counted_bytes(held.device, "reserved") > 0


def _counted_bytes(device: torch.device, what: str, when: str = "current") -> int:
    """Return what torch's allocator has `reserved` of a GPU, or `active`; its own functions would sort all counters."""
    counters = torch.cuda.memory_stats_as_nested_dict(device)
    return counters[f"{what}_bytes"]["all"][when] if counters else 0


def given_room(device: BesideHost, size_bytes: int, take: Callable[[], T]) -> T:
    """Return what `take` returns, if need be after the device gave back what is not in use.

    Where that raises `MemoryError` again, raises `DeviceFull`, which says that `size_bytes` are needed.
    """
    with suppress(MemoryError):
        return take()
    device.give_back()
    try:
        return take()
    except MemoryError as error:
        raise device.full(size_bytes) from error


def library_settings() -> str:
    """Return the settings by which libraries of a GPU choose their kernels, as a part of a name.

    `allow_tf32` raises where a user has set precisions by name; the names can be read whoever has set what.
    """
    precision = torch._C._get_fp32_precision_getter  # noqa: SLF001 - what fp32_precision of each library reads
    precisions = [precision("cuda", kind) for kind in ("matmul", "conv", "rnn")]
    chosen = (
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    return "-".join([*precisions, "".join("y" if flag else "n" for flag in chosen)])


def segment_bytes(sizes_bytes: Iterable[int]) -> int:
    """Return the bytes of the segments that torch's allocator takes for tensors of these sizes, if it had none.

    Large tensors have segments of their own, others share segments of one size. Source: get_allocation_size in
    c10/cuda/CUDACachingAllocator.cpp.
    """
    taken = 0
    left = {_SMALL_SEGMENT_BYTES: 0, _SEGMENT_BYTES: 0}
    for size in sizes_bytes:
        if size >= _LARGE_BYTES:
            taken += round_up(size, _SMALL_SEGMENT_BYTES)
            continue
        segment = _SMALL_SEGMENT_BYTES if size <= _SMALL_BYTES else _SEGMENT_BYTES
        block = round_up(size, _BLOCK_BYTES)
        if block > left[segment]:
            taken += segment
            left[segment] = segment
        left[segment] -= block
    return taken
