"""How much memory does this process take? The kernel's own counters.

    process_bytes     VmRSS: pages of the process that are in RAM now: anonymous ones (heap, stacks, blocks),
                      shared memory, and file pages (the mapped parts of libraries, memory-mapped data)
    high_water_bytes  VmHWM: the largest VmRSS since the process began or `reset_high_water` was last called

Both count the same kinds of pages, so their difference means something; a baseline removes what libraries
take. Reserved addresses, bytes that were never touched, and the spill file (it is not cached) count in
neither. A page of a memfd that is mapped twice counts twice. The kernel keeps the counters per processor and
adds them up lazily: a figure may be off by about 256 KiB for each processor.
"""

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_HIGH_WATER = "5"


def process_bytes() -> int:
    """Return the bytes of RAM that the process takes now."""
    return _status_bytes("VmRSS")


def high_water_bytes() -> int:
    """Return the most bytes of RAM that the process took since the mark was last reset."""
    return _status_bytes("VmHWM")


def reset_high_water() -> None:
    """Let the high-water mark begin again from what the process takes now; needs no privilege."""
    _CLEAR_REFS.write_text(_RESET_HIGH_WATER)


def _status_bytes(key: str) -> int:
    lines = _STATUS.read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith(f"{key}:"))
    return int(kibibytes) * 1024
