"""What does a process take that the kernel could have at any time? Pages of files that it has mapped to read.

A data set that is mapped (`numpy.memmap`, Arrow's tables) takes memory as it is read, page by page, until somebody
wants it. `let_go` gives it back: the pages stay in the kernel's cache, from where they come back when they are touched.
Private mappings are left alone, since what was written to them is nowhere else, and so are files that are memory
themselves.
"""

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from outgrow.runtime.memory import let_go_of
from outgrow.runtime.tiers import is_in_memory

_MAPS = Path("/proc/self/maps")
_SHARED, _GONE = "s", " (deleted)"


def let_go() -> None:
    """Give back the pages of files that this process has mapped and shares with the kernel's cache."""
    for address, size_bytes in _mappings():
        let_go_of(address, size_bytes)


def _mappings() -> Iterator[tuple[int, int]]:
    """Yield where files are mapped that are shared, and in how many bytes."""
    for line in _MAPS.read_text().splitlines():
        # 7f2b64000000-7f2b76c00000 r--s 00000000 08:01 1234    /data/train.bin
        span, flags, _, _, _, *rest = line.split(maxsplit=5)
        path = rest[0] if rest else ""
        if flags.endswith(_SHARED) and path.startswith("/") and not path.endswith(_GONE) and _is_on_disk(Path(path)):
            begin, end = (int(number, 16) for number in span.split("-"))
            yield begin, end - begin


def _is_on_disk(path: Path) -> bool:
    """Whether a file is a regular one whose pages the kernel can read again."""
    with suppress(OSError):
        return stat.S_ISREG(path.stat().st_mode) and not is_in_memory(path)
    return False
