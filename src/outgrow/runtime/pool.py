"""Where in host memory do bytes of a device rest? In a pool: as many bytes as are needed, page-locked, taken once.

A device copies to and from page-locked memory by itself, at the rate of the bus and beside the host's own work. Torch's
own page-locked memory is rounded up to a power of two and never given back; the pool is a mapping of the kernel's of
just the size that was asked for, which the driver is asked to lock. Its pages are touched first, by all threads:
locking pages that are there is several times as fast as letting the driver bring them in.

Where the driver refuses, the pool is pageable memory: right, but copies go through a buffer of the driver's, and the
host waits for them. This is said once.
"""

import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from warnings import warn
from weakref import finalize

import torch

from outgrow.errors import TierFailure
from outgrow.runtime.memory import HUGE_PAGE_BYTES, round_up
from outgrow.units import format_bytes

Lock = Callable[[int, int], Callable[[], None] | None]
"""Lock the pages of bytes, by address and size; returns what unlocks them, or None where they cannot be locked."""

_PAGEABLE = (
    "The driver did not lock {} of host memory, so copies to and from the device are slower and the host waits for "
    "them. Raise the limit of locked memory (ulimit -l), or that of the container."
)


class HostPool:
    """`size_bytes` of host memory, at least; raises `TierFailure` if the machine does not have as many free."""

    def __init__(self, size_bytes: int, lock: Lock) -> None:
        assert size_bytes > 0, f"a pool holds bytes, not {size_bytes}"
        self.size_bytes = round_up(size_bytes, HUGE_PAGE_BYTES)
        _require_free(self.size_bytes)
        memory = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._bytes.zero_()  # by all threads
        unlock = lock(self._bytes.data_ptr(), self.size_bytes)
        self.is_locked = unlock is not None
        if unlock is None:
            warn(_PAGEABLE.format(format_bytes(self.size_bytes)), stacklevel=2)
        else:  # before the mapping goes, which the last tensor over it keeps
            finalize(memory, unlock).atexit = False

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """Return bytes of the pool, uint8[size]."""
        assert 0 <= offset <= offset + size <= self.size_bytes, f"{offset}:{offset + size} are not in the pool"
        return self._bytes[offset : offset + size]


def unlocked(_address: int, _size_bytes: int) -> Callable[[], None]:
    """Leave memory as it is: where the device is the host, there is nothing to lock."""
    return lambda: None


def locked_by_cuda(address: int, size_bytes: int) -> Callable[[], None] | None:
    """Let CUDA lock pages (`cudaHostRegister`)."""
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(address, size_bytes, 0)) == 0:
        return lambda: runtime.cudaHostUnregister(address)
    with suppress(RuntimeError):  # CUDA keeps the refusal for the next kernel that asks; this one does
        torch.zeros(1, device="cuda")
    return None


def available_bytes() -> int:
    """Return what the kernel says that could be taken without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _require_free(size_bytes: int) -> None:
    free = available_bytes()
    if size_bytes > free:
        raise TierFailure(
            f"{format_bytes(size_bytes)} of host memory are needed for what leaves the device, and "
            f"{format_bytes(free)} are free. Free some memory, or raise the memory budget of the device."
        )
