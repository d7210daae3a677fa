"""When is freed memory free for others? glibc's heap, which serves all that the arena does not, keeps it for itself.

Freed bytes linger in the heap where something above them lives, and where they are small. So it is told to give large
allocations mappings of their own (`fix_mmap_threshold`), and to give back whole pages that are free (`trim`).
Nothing is asked of another C library.
"""

import ctypes
import gc
from functools import cache
from pathlib import Path

from outgrow.runtime import arena
from outgrow.runtime.process import process_bytes

MAPPED_BYTES = 1 << 20
"""Where room is short, tensors of this size and more get a mapping of their own, so that freed bytes are free."""

_M_MMAP_THRESHOLD = -3

_libc = ctypes.CDLL(None)
_libc.sbrk.argtypes = (ctypes.c_long,)
_libc.sbrk.restype = ctypes.c_size_t


def trim() -> None:
    """Give the heap's free pages back to the kernel, as far as the C library can (glibc: `malloc_trim`)."""
    if _is_glibc():
        _libc.malloc_trim(ctypes.c_size_t(0))


def clear_away() -> None:
    """Collect garbage, and give back what is free then: cycles of a capture would count as overhead."""
    gc.collect()
    trim()


def settled_bytes() -> int:
    """Return the bytes of RAM that the process takes once all that is free was given back."""
    clear_away()
    return process_bytes()


def fix_mmap_threshold(size_bytes: int) -> None:
    """Let allocations of `size_bytes` and more have mappings of their own, freed at once (glibc: `mallopt`).

    glibc raises this threshold by itself to 32 MiB as a program runs, and freed tensors then linger in its
    heap. The price is a page fault for every page of every allocation.
    """
    if _is_glibc():
        _libc.mallopt(_M_MMAP_THRESHOLD, size_bytes)


def least_bytes() -> int:
    """Return the smallest size at which a tensor that dies makes room for any other; on the heap it may leave holes."""
    return arena.LEAST_BYTES if arena.is_available() else MAPPED_BYTES


def is_on_heap(address: int) -> bool:
    """Whether memory lies on the process's heap, where it stays after `free` until `trim` gives it back."""
    return _heap_begin() <= address < _libc.sbrk(0)


@cache
def _heap_begin() -> int:
    """Where the heap begins; above every address if the process has none."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next((int(line.partition("-")[0], 16) for line in lines if line.endswith("[heap]")), 1 << 64)


def _is_glibc() -> bool:
    return hasattr(_libc, "gnu_get_libc_version")
