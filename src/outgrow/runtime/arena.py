"""How is memory used again instead of being taken anew? Tensors of 256 KiB and more live in an arena.

Memory that is given back to the kernel has to be taken again page by page, zeroed, and on a virtual machine often
asked of its host: up to a second a GiB. A step under a budget frees and takes its whole budget several times over.
The arena keeps what dies, and serves the next tensor with the same pages (`arena.cpp` says how). What is kept is
never more than what was live at once, so the process takes no more for it; nor more than the budget of the step that
ran last, whatever else has lived there since, and nothing once that is closed.

The arena is an allocator of torch's own kind, written in C++ and compiled when it is first needed (a second), then
kept in the user's cache folder. Where there is no compiler, tensors take fresh memory as ever: right, but slower; and
since storages cannot change places then, what outlives the step stays in memory. This is said once.
"""

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

from outgrow.runtime import native

CHUNK_BYTES = 2 << 20
_CUDA = 1
"""The number of CUDA among torch's types of devices (c10/core/DeviceType.h)."""
LEAST_BYTES = 256 << 10
"""The smallest tensors that live in the arena."""
_SOURCE = native.Source(Path(__file__).with_suffix(".cpp"))
_MISSING = (
    "outgrow finds no C++ compiler that works, so steps are slower, and weights and optimizer state stay in memory. "
    "Install g++, or name a compiler in the environment variable CXX."
)
_ADDRESS, _BYTES, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_FUNCTIONS: native.Functions = {
    "arena_install": (None,),
    "arena_resting_bytes": (_BYTES,),
    "arena_live_bytes": (_BYTES,),
    "arena_rise_bytes": (_BYTES,),
    "arena_watch": (None,),
    "arena_watched": (_BYTES, ctypes.POINTER(_BYTES)),
    "arena_keep_at_most": (None, _BYTES),
    "arena_rest_at_most": (None, _BYTES),
    "arena_expect": (None, _BYTES, _BYTES, _ADDRESS),
    "arena_fill": (_INT, _ADDRESS, _BYTES),
    "arena_lend": (_INT, _ADDRESS, _BYTES),
    "arena_adopt": (None, _ADDRESS, _BYTES),
    "arena_exchange": (None, _ADDRESS, _ADDRESS),
    "arena_reach_from": (None, _ADDRESS, _INT, _INT),
    "arena_is_loaded": (ctypes.c_bool, _ADDRESS),
}


def install() -> bool:
    """From now on let torch's large tensors live in the arena; returns whether they do. May be called again."""
    library = _library()
    if library is not None:
        library.arena_install()
        _installed[:] = [True]
    return library is not None


_installed: list[bool] = []


def is_installed() -> bool:
    """Whether torch's large tensors live in the arena."""
    return bool(_installed)


def resting_bytes() -> int:
    """Return the bytes that the arena keeps for later; 0 where it is not installed."""
    return _ready().arena_resting_bytes() if _installed else 0


def live_bytes() -> int:
    """Return the bytes of tensors that live there; 0 where it is not installed."""
    return _ready().arena_live_bytes() if _installed else 0


def rise_bytes() -> int:
    """Return the most by which the bytes of live tensors rose since the last call; 0 where it is not installed."""
    return _ready().arena_rise_bytes() if _installed else 0


def watch() -> None:
    """Begin to watch what the process takes beside the arena.

    Memory of the arena is touched as soon as it is given, so that all else that the high water shows is not the
    arena's.
    """
    if _installed:
        _ready().arena_watch()


def watched() -> tuple[int, int]:
    """End the watch; return the high water of the process, and the most it took beside the arena for a time.

    The latter is in bytes above what the process takes beside the arena now. Where it is not installed, all is beside.
    """
    if not _installed:
        return 0, sys.maxsize
    top = ctypes.c_size_t()
    beside = _ready().arena_watched(ctypes.byref(top))
    return top.value, beside


def keep_at_most(size_bytes: int) -> None:
    """Give resting memory back to the kernel until at most `size_bytes` rest."""
    if _installed:
        _ready().arena_keep_at_most(max(0, size_bytes))


def rest_at_most(size_bytes: int) -> None:
    """Let at most `size_bytes` rest, now and whenever tensors are freed, until another limit is set."""
    if _installed:
        _ready().arena_rest_at_most(size_bytes)


def expect(size_bytes: int, idle: int, address: int | None) -> None:
    """Announce the tensors of exactly this size that this thread makes next; a size of 0 withdraws what was announced.

    The first `idle` of them take no memory until they are touched. The one after them lies at `address`, whose owner
    keeps it; None: anywhere.
    """
    _ready().arena_expect(size_bytes, idle, address)


def is_available() -> bool:
    """Whether the arena can be installed on this machine."""
    return _library() is not None


def fill(address: int, size_bytes: int) -> bool:
    """Make reserved bytes usable, with resting memory first; `address` begins a chunk. Return whether it worked."""
    return _ready().arena_fill(address, size_bytes) == 0


def lend(address: int, size_bytes: int) -> bool:
    """Let others have the memory of whole chunks; the addresses stay, for `fill`. Return whether it was possible."""
    return _ready().arena_lend(address, size_bytes) == 0


def adopt(address: int, size_bytes: int) -> None:
    """Take over the memory of bytes that were filled as a whole, for later use."""
    _ready().arena_adopt(address, size_bytes)


def exchange(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Let two storages of one size change places in memory; every tensor over either of them goes along."""
    assert one.nbytes() == other.nbytes(), "only storages of one size change places"
    _ready().arena_exchange(one._cdata, other._cdata)  # noqa: SLF001 - the C++ object that tensors refer to


def reach_from(storage: torch.UntypedStorage, device: torch.device) -> None:
    """Let a storage say that its memory is on a device; the device can reach it."""
    if storage.device != device:
        _ready().arena_reach_from(storage._cdata, _CUDA, device.index or 0)  # noqa: SLF001 - the C++ object


def is_loaded(storage: torch.UntypedStorage) -> bool:
    """Whether a storage comes from `torch.load`; torch marks it like one whose address it gave to NumPy."""
    return _ready().arena_is_loaded(storage._cdata)  # noqa: SLF001 - the C++ object that tensors refer to


def _ready() -> ctypes.CDLL:
    library = _library()
    assert library is not None, "only an arena that was installed is used"
    return library


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled arena, from the cache folder if it is there; None where it cannot be made."""
    return native.load_or_remark(lambda: _SOURCE, _FUNCTIONS, _MISSING)
