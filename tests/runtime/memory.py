"""How the tests of the runtime look at raw memory."""

import ctypes
from pathlib import Path

from outgrow.runtime.memory import Block
from outgrow.units import MIB

COUNTER_SLACK_BYTES = 6 * MIB
"""The kernel's counters lag behind by some pages a processor, and the heap of the tests moves a little."""


def touch(block: Block, begin: int, end: int) -> None:
    """Write ones to committed bytes of a block."""
    ctypes.memset(block.address + begin, 1, end - begin)


def bytes_of(address: int, size: int) -> bytes:
    """Copy raw memory."""
    return ctypes.string_at(address, size)


def put(address: int, content: bytes) -> None:
    """Overwrite raw memory."""
    ctypes.memmove(address, content, len(content))


def filled(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from one seed, and from one page, to the next."""
    words = range(min(size // 4 + 1, 5003))
    pattern = b"".join(((seed * 1009 + word) % 2**32).to_bytes(4, "little") for word in words)
    return (pattern * (size // len(pattern) + 1))[:size]


def is_mapped(address: int) -> bool:
    """Whether anything, reserved addresses included, is mapped at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= address < end:
            return True
    return False


def open_spill_files() -> int:
    """How many descriptors of this process lead to deleted files, as spill files are."""
    links = list(Path("/proc/self/fd").iterdir())
    return sum("(deleted)" in str(link.readlink()) for link in links if link.is_symlink())
