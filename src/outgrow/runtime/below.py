"""What is a file to a device that reaches it only through the host? Bytes that it reads, slowly, where they rest.

A device that reads unlocked pages of the host (on CUDA, where the driver reports pageable memory access) also reads a
mapping of a file. So what outlives the step can rest there between steps, as a tensor of the device. While a step runs,
bytes pass through locked buffers (`runtime.staged`).
"""

from collections.abc import Callable

import torch

from outgrow.runtime import arena
from outgrow.runtime.memory import bytes_on, room_for
from outgrow.runtime.staged import PIECE_BYTES
from outgrow.runtime.tiers import DiskTier


class FileBelow:
    """A file in a folder, as a tier of `device`."""

    seam_bytes = 0
    budget_name = DiskTier.budget_name

    def __init__(self, device: torch.device, file: DiskTier) -> None:
        self.file, self._device = file, device

    @property
    def capacity_bytes(self) -> int:
        """The bytes of the file."""
        return self.file.capacity_bytes

    @property
    def size_bytes(self) -> int:
        """What it takes of the disk."""
        return self.file.size_bytes

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that made it."""
        return self.file.is_inherited

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return self.file.place

    def grow(self, capacity_bytes: int) -> None:
        """Take more disk space. Raises `TierFailure` if there is too little."""
        self.file.grow(capacity_bytes)

    def taken_for(self, size_bytes: int) -> int:
        """Return what `size_bytes` more take of the disk."""
        return self.file.taken_for(size_bytes)

    def release(self, take_away: Callable[[int, int], bool]) -> None:
        """Give nothing back: a file is one piece."""

    def require_reached(self, offset: int, size: int) -> None:
        """Do nothing: only where the device reads pages of the host does anything rest here."""

    def mapped(self, offset: int, size: int, keep: object) -> torch.UntypedStorage:
        """Return a storage of the device over bytes of the file; they and `keep` live as long as it does."""
        storage = self.file.mapped(offset, size, keep)
        arena.reach_from(storage, self._device)
        return storage

    def write(self, offset: int, address: int, size: int) -> None:
        """Copy `size` bytes of the device at `address` to `offset`, now."""
        for begin in range(0, size, PIECE_BYTES):
            piece = bytes_on(self._device, address + begin, min(PIECE_BYTES, size - begin)).cpu()
            self.file.write(offset + begin, piece.data_ptr(), piece.nbytes)

    def home(self, offset: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return memory of the device with the bytes of a storage that is mapped at `offset`, read from the file."""
        room = torch.empty(storage.nbytes(), dtype=torch.uint8, device=self._device)
        buffer = torch.empty(0, dtype=torch.uint8).set_(room_for(min(PIECE_BYTES, room.nbytes)))
        for begin in range(0, room.nbytes, PIECE_BYTES):
            piece = buffer[: room.nbytes - begin]
            self.file.read(offset + begin, piece.data_ptr(), piece.nbytes)
            room[begin : begin + piece.nbytes].copy_(piece)
        return room.untyped_storage()

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Give back the memory of the host that was taken by reading a storage that is mapped here."""
        self.file.forget(storage)
