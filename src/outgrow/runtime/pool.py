"""Where in host memory do bytes of a device rest? In a pool: as many bytes as are needed, page-locked, taken once.

A device copies to and from page-locked memory by itself, at the rate of the bus and beside the host's own work, and
most reach it from their kernels too, at the host's addresses, only slower. Torch's own page-locked memory is rounded up
to a power of two and never given back; the pool is made of mappings of just the sizes that were asked for, which the
driver is asked to lock. Their pages are touched first, by all threads: locking pages that are there is several times as
fast as letting the driver bring them in.

Where the driver refuses, the pool is pageable memory: right, but copies go through a buffer of the driver's, and the
host waits for them; and the device cannot reach it otherwise, so that nothing can rest there between steps. This is
said once.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from outgrow.errors import TierFailure
from outgrow.remarks import remark
from outgrow.runtime import arena
from outgrow.runtime.memory import HUGE_PAGE_BYTES, bytes_at, bytes_on, fresh, owned
from outgrow.runtime.pages import reaches_locked
from outgrow.runtime.process import available_bytes
from outgrow.units import format_bytes, round_up

LockPages = Callable[[int, int], Callable[[], None] | str]
"""Lock the pages of bytes, by address and size; returns what unlocks them, or why they could not be locked."""

_PAGEABLE = (
    "The driver did not lock {} of host memory ({}), so copies to and from the device are slower and the host waits "
    "for them. Raise the limit of locked memory (ulimit -l), or that of the container."
)


class _Piece(NamedTuple):
    """Memory for the offsets begin:end of a pool."""

    begin: int
    end: int
    memory: torch.Tensor
    is_locked: bool


class HostPool:
    """Host memory beside a device, in pieces, each locked as a whole: no copy reaches from one piece to the next.

    Offsets go on from piece to piece, with a gap of `seam_bytes` between two of them.
    """

    seam_bytes = 4096
    budget_name = "host budget"
    place = "memory of the host"

    def __init__(self, device: torch.device, lock: LockPages) -> None:
        self.device, self._lock = device, lock
        self.capacity_bytes = 0
        self._pieces: list[_Piece] = []
        self._process = os.getpid()

    @property
    def is_locked(self) -> bool:
        """Whether all pieces are locked."""
        return all(piece.is_locked for piece in self._pieces)

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that made the pool, whose locks it does not have."""
        return os.getpid() != self._process

    def grow(self, capacity_bytes: int) -> None:
        """Take one more piece, which ends at this offset. Raises `TierFailure` if the host has too little free."""
        begin = self.capacity_bytes + self.seam_bytes
        size = self.taken_for(capacity_bytes - begin)
        _require_free(size)
        piece, ends = fresh(size)
        piece.zero_()  # by all threads
        unlock = self._lock(piece.data_ptr(), size)
        if callable(unlock):
            ends.append(unlock)
        elif self.is_locked:
            remark(_PAGEABLE.format(format_bytes(size), unlock))
        self._pieces.append(_Piece(begin, capacity_bytes, piece, callable(unlock)))
        self.capacity_bytes = capacity_bytes

    @property
    def size_bytes(self) -> int:
        """What it takes of the host."""
        return sum(piece.memory.nbytes for piece in self._pieces)

    def taken_for(self, size_bytes: int) -> int:
        """Return what a piece of `size_bytes` takes of the host."""
        return round_up(size_bytes, HUGE_PAGE_BYTES)

    def release(self, take_away: Callable[[int, int], bool]) -> None:
        """Give back pieces of which nobody has any byte.

        `take_away(begin, end)` says so of a piece, by its offsets, and takes them out of what is free.
        """
        self._pieces = [piece for piece in self._pieces if not take_away(piece.begin, piece.end)]

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """Return bytes of the pool, uint8[size]."""
        piece = self._piece(offset, size)
        return piece.memory[offset - piece.begin : offset - piece.begin + size]

    def require_reached(self, offset: int, size: int) -> None:
        """Raise `TierFailure` unless the device reaches these bytes, so that a storage of it can be there."""
        if not self._piece(offset, size).is_locked:
            raise TierFailure(
                f"{format_bytes(size)} were to rest in memory of the host, which the driver did not lock, so that the "
                "device cannot reach it. Raise the limit of locked memory (ulimit -l), or the memory budget."
            )
        if not reaches_locked(self.device):
            raise TierFailure(
                f"{format_bytes(size)} were to rest in memory of the host, which kernels of {self.device} do not reach "
                "at its addresses. Raise the memory budget."
            )

    def mapped(self, offset: int, size: int, keep: object) -> torch.UntypedStorage:
        """Return a storage of the device over bytes of the pool; they and `keep` live as long as it does."""
        self.require_reached(offset, size)
        content = bytes_at(self.bytes(offset, size).data_ptr(), size)
        storage = owned(content, _let_go, self._piece(offset, size).memory, keep).untyped_storage()
        arena.reach_from(storage, self.device)
        return storage

    def write(self, offset: int, address: int, size: int) -> None:
        """Copy `size` bytes of the device at `address` to `offset`, now."""
        self.bytes(offset, size).copy_(bytes_on(self.device, address, size))

    def home(self, offset: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return memory of the device with the bytes of a storage that is mapped at `offset`."""
        room = torch.empty(storage.nbytes(), dtype=torch.uint8, device=self.device)
        return room.copy_(self.bytes(offset, storage.nbytes())).untyped_storage()

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Do nothing: what rests here has no other place."""

    def _piece(self, offset: int, size: int) -> _Piece:
        at = bisect_right(self._pieces, offset, key=attrgetter("begin")) - 1
        assert at >= 0, f"byte {offset} is not in the pool"
        piece, end = self._pieces[at], offset + size
        assert end <= piece.begin + piece.memory.nbytes, f"{offset}:{end} are not in one piece of the pool"
        return piece


def _let_go(_piece: torch.Tensor, _keep: object) -> None:
    """Hold on to a piece, and whatever else is to be kept, until nobody needs its bytes any more."""


def locked_by_cuda(address: int, size_bytes: int, device: torch.device) -> Callable[[], None] | str:
    """Let CUDA lock pages for a GPU (`cudaHostRegister`); it may refuse for a moment, so it is asked twice."""
    runtime: Any = torch.cuda.cudart()
    status = 0
    with torch.cuda.device(device):  # another one would be given a context, which takes hundreds of MB
        for _ in range(2):
            status = int(runtime.cudaHostRegister(address, size_bytes, 0))
            if status == 0:
                return lambda: _unlock(runtime, address, device)
            with suppress(RuntimeError):  # CUDA keeps the refusal for the next kernel that asks; this one does
                torch.zeros(1, device=device)
                torch.cuda.synchronize(device)
    return f"cudaHostRegister returned {status}"


def _unlock(runtime: Any, address: int, device: torch.device) -> None:
    """Unlock pages, behind whatever still copies from or to them."""
    with suppress(RuntimeError):  # a device that has failed copies no more
        torch.cuda.synchronize(device)
    runtime.cudaHostUnregister(address)


def _require_free(size_bytes: int) -> None:
    free = available_bytes()
    if size_bytes > free:
        raise TierFailure(
            f"{format_bytes(size_bytes)} of host memory are needed for what leaves the device, and "
            f"{format_bytes(free)} are free. Free some memory, or raise the memory budget of the device."
        )
