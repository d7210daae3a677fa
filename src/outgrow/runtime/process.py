"""How much memory does this process take? The kernel's own counters.

    process_bytes     VmRSS - RssFile: pages of the process that are in RAM now, anonymous ones (heap, stacks, blocks)
                      and shared memory, but not those of files (libraries, mapped data sets), which the kernel takes
                      back when it needs them, unless they are locked
    high_water_bytes  VmHWM: the largest VmRSS since the process began or `reset_high_water` was last called, without
                      the pages of files that were there then and at every look since

The kernel has no mark without files, so of those that are read after the reset, or go, pages are counted. Reserved
addresses, bytes that were never touched, and what copies move to and from the spill file count in neither. A page of a
memfd that is mapped twice counts twice. The kernel keeps the counters per processor and adds them up lazily: a figure
may be off by about 256 KiB for each processor.

A kernel that is none of Linux (gVisor's) may have no mark. Steps on a CPU are measured by it, so they are refused then.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

_STATUS, _CLEAR_REFS = "/proc/self/status", "/proc/self/clear_refs"
_MAPS, _PRIVATE = "/proc/self/maps", b"p"
_MEMORY = "/proc/meminfo"
_GROUPS, _GROUP_ROOT = "/proc/self/cgroup", Path("/sys/fs/cgroup")
_HIGH_WATER, _RESIDENT, _OF_FILES = b"VmHWM:", b"VmRSS:", b"RssFile:"
_RESET_HIGH_WATER = b"5"
_PAGE_MAP, _PAGE_ENTRY_BYTES, _PRESENT, _NOT_ANONYMOUS = "/proc/self/pagemap", 8, np.uint64(1 << 63), np.uint64(1 << 61)
"""The kernel's table of pages: an entry for each. Its highest bit says that the page is in RAM; where another one is
set, it is of a file or shared memory."""
_MOST_BYTES = 1 << 14
"""More than the kernel writes of one process."""
_NO_MARK = (
    "The kernel does not tell how much memory a process took at most ({} is lacking), by which a memory budget on the "
    "CPU is kept. Run this on a kernel of Linux itself (a sandbox such as gVisor has its own), or the model on a GPU."
)


_of_files_at_mark = [0]
"""The bytes of pages of files when the mark was last reset, or the least that were seen since."""


def process_bytes() -> int:
    """Return the bytes of RAM that the process takes now."""
    status = _read(_STATUS)
    return _field(status, _RESIDENT) - _of_files(status)


def counted_bytes() -> int:
    """Return the same as the mark counts it: with files that have been read since it was reset."""
    status = _read(_STATUS)
    return without_files(_field(status, _RESIDENT), status)


def high_water_bytes() -> int:
    """Return the most bytes of RAM that the process took since the mark was last reset. Raises `OSError` for none."""
    status = _read(_STATUS)
    if _HIGH_WATER not in status:
        raise OSError(_NO_MARK.format(f"VmHWM of {_STATUS}"))
    return without_files(_field(status, _HIGH_WATER), status)


def without_files(size_bytes: int, status: bytes | None = None) -> int:
    """Return a figure of the kernel's as `high_water_bytes` counts; `status` is what the kernel says now."""
    _of_files_at_mark[0] = min(_of_files_at_mark[0], _of_files(_read(_STATUS) if status is None else status))
    return size_bytes - _of_files_at_mark[0]


def present_bytes(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return how many bytes are in RAM now of ranges of memory, each an address and a size in bytes.

    Of each those of anonymous pages, and those of pages of files or shared memory. What nobody has touched yet is not
    there. Where the kernel does not tell, all are anonymous.
    """
    if not ranges:
        return []
    try:
        with Path(_PAGE_MAP).open("rb", buffering=0) as table:
            return [_present_bytes(table.fileno(), address, size_bytes) for address, size_bytes in ranges]
    except OSError:
        return [(size_bytes, 0) for _, size_bytes in ranges]


def _present_bytes(table: int, address: int, size_bytes: int) -> tuple[int, int]:
    first, last = address // mmap.PAGESIZE, -(-(address + size_bytes) // mmap.PAGESIZE)
    entries = os.pread(table, (last - first) * _PAGE_ENTRY_BYTES, first * _PAGE_ENTRY_BYTES)
    pages = np.frombuffer(entries, dtype=np.uint64)
    absent = int(np.count_nonzero(pages < _PRESENT))
    other = int(np.count_nonzero((pages >= _PRESENT) & (pages & _NOT_ANONYMOUS > 0)))
    present = max(0, size_bytes - absent * mmap.PAGESIZE)
    anonymous = max(0, present - other * mmap.PAGESIZE)
    return anonymous, present - anonymous


def is_private(address: int) -> bool:
    """Return whether what is written at an address becomes the process's own, even if it is mapped from a file."""
    with Path(_MAPS).open("rb") as table:
        for line in table:
            extent, access, _ = line.split(maxsplit=2)
            begin, end = (int(side, 16) for side in extent.split(b"-"))
            if begin <= address < end:
                return access.endswith(_PRIVATE)
    return True


def reset_high_water() -> None:
    """Let the high-water mark begin again from what the process takes now; needs no privilege.

    Raises `OSError` where there is no mark.
    """
    try:
        descriptor = os.open(_CLEAR_REFS, os.O_WRONLY)
    except FileNotFoundError as error:
        raise OSError(_NO_MARK.format(_CLEAR_REFS)) from error
    _of_files_at_mark[0] = _of_files(_read(_STATUS))  # before the reset: what is read meanwhile is counted
    try:
        os.write(descriptor, _RESET_HIGH_WATER)
    finally:
        os.close(descriptor)


def machine_bytes() -> int:
    """Return the bytes of RAM that this machine has, or as much of it as the container of this process may take."""
    return min([os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE, *_limits()])


def available_bytes() -> int:
    """Return the bytes of RAM that could be taken now: what the kernel says is free, within the container's limit.

    Of the limit what this process takes is gone; what other processes of the container take is not known.
    """
    free, own = _field(_read(_MEMORY), b"MemAvailable:"), process_bytes()
    return max(0, min([free, *(limit - own for limit in _limits())]))


def _field(text: bytes, name: bytes) -> int:
    """Return the bytes of a field of a table in which the kernel writes KiB."""
    kibibytes, _ = text.partition(name)[2].split(maxsplit=1)
    return int(kibibytes) * 1024


def _of_files(status: bytes) -> int:
    """Return the bytes of pages of files; none where the kernel does not tell them apart."""
    return _field(status, _OF_FILES) if _OF_FILES in status else 0


def _limits() -> Iterator[int]:
    """Yield the limits of the control groups that this process is in, of either version; most have none."""
    try:
        groups = Path(_GROUPS).read_text().splitlines()
    except FileNotFoundError:  # a kernel without groups
        return
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            root, name = _GROUP_ROOT, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUP_ROOT / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = root / group.lstrip("/")
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError):
                yield int((folder / name).read_text())


def _read(path: str) -> bytes:
    """Return what the kernel says now, without the layers of a Python file: each step asks twice."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
