"""How much memory does this process take? The kernel's own counters.

    process_bytes     VmRSS: pages of the process that are in RAM now: anonymous ones (heap, stacks, blocks),
                      shared memory, and file pages (the mapped parts of libraries, memory-mapped data)
    high_water_bytes  VmHWM: the largest VmRSS since the process began or `reset_high_water` was last called

Both count the same kinds of pages, so their difference means something; a baseline removes what libraries
take. Reserved addresses, bytes that were never touched, and the spill file (it is not cached) count in
neither. A page of a memfd that is mapped twice counts twice. The kernel keeps the counters per processor and
adds them up lazily: a figure may be off by about 256 KiB for each processor.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_STATUS, _STATM, _CLEAR_REFS = "/proc/self/status", "/proc/self/statm", "/proc/self/clear_refs"
_MEMORY = "/proc/meminfo"
_GROUPS, _GROUP_ROOT = "/proc/self/cgroup", Path("/sys/fs/cgroup")
_HIGH_WATER = b"VmHWM:"
_RESET_HIGH_WATER = b"5"
_MOST_BYTES = 1 << 14
"""More than the kernel writes of one process."""


def process_bytes() -> int:
    """Return the bytes of RAM that the process takes now."""
    _, resident, _ = _read(_STATM).split(maxsplit=2)
    return int(resident) * mmap.PAGESIZE


def high_water_bytes() -> int:
    """Return the most bytes of RAM that the process took since the mark was last reset."""
    return _field(_read(_STATUS), _HIGH_WATER)


def reset_high_water() -> None:
    """Let the high-water mark begin again from what the process takes now; needs no privilege."""
    descriptor = os.open(_CLEAR_REFS, os.O_WRONLY)
    try:
        os.write(descriptor, _RESET_HIGH_WATER)
    finally:
        os.close(descriptor)


def machine_bytes() -> int:
    """Return the bytes of RAM that this machine has, or as much of it as the container of this process may take."""
    return min([os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE, *_limits()])


def available_bytes() -> int:
    """Return the bytes of RAM that could be taken now: what the kernel says is free, within the container's limit.

    Of the limit this process's own memory is taken, less the pages of files, which the kernel can drop; what other
    processes of the container take is not known.
    """
    free = _field(_read(_MEMORY), b"MemAvailable:")
    status = _read(_STATUS)
    own = _field(status, b"RssAnon:") + _field(status, b"RssShmem:")
    return max(0, min([free, *(limit - own for limit in _limits())]))


def _field(text: bytes, name: bytes) -> int:
    """Return the bytes of a field of a table in which the kernel writes KiB."""
    kibibytes, _ = text.partition(name)[2].split(maxsplit=1)
    return int(kibibytes) * 1024


def _limits() -> Iterator[int]:
    """Yield the limits of the control groups that this process is in, of either version; most have none."""
    for line in Path(_GROUPS).read_text().splitlines():
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
