"""Where do the storages of a run live? What a run asks of the memory of its device.

Heap            torch's allocator, and blocks of address space (`runtime.heap`): a CPU, where addresses do not matter
PlannedMemory   planned addresses in one arena (`runtime.planned_arena`): a device whose allocator wastes what it cannot
                join
"""

from collections.abc import Mapping
from typing import Protocol

import torch

from outgrow.runtime.program import Geometry
from outgrow.runtime.recording import Moment
from outgrow.runtime.resting import Extent


class DeviceMemory(Protocol):
    """The memory of one run. Storages are given by name; bytes are counted from the first one of the storage."""

    is_timed: bool
    """Whether `moment` tells when operators run."""

    @property
    def high_water_bytes(self) -> int:
        """The most bytes that the process took since `begin`."""
        ...

    def begin(self, free_bytes: int) -> Moment:
        """Begin to measure, with room for `free_bytes` beyond what is there; return the moment."""
        ...

    def resting_bytes(self) -> int:
        """Return how much memory is kept for later."""
        ...

    def moment(self) -> Moment:
        """Return the present moment."""
        ...

    def end(self) -> Moment:
        """Return the moment when everything asked for so far will have been done."""
        ...

    def leave_free(self, free_bytes: int) -> None:
        """Keep only so much memory for later that `free_bytes` stay free."""
        ...

    def before(self, position: int) -> None:
        """Note that this instruction comes next."""
        ...

    def after(self) -> None:
        """Note that the operator of this instruction has returned, and that what it made for itself is gone."""
        ...

    def born(self, storage: str, item: torch.Tensor, geometry: Geometry, size_bytes: int) -> torch.Tensor:
        """Return a result with which a storage is born, where it is to live."""
        ...

    def reserve(self, storage: str, begin: int, end: int, size: int, there: torch.UntypedStorage | None) -> int:
        """Make room for a copy of bytes begin:end of a storage of `size` bytes; return the address of its first byte.

        `there` is the storage if other bytes of it stayed.
        """
        ...

    def arrived(self, storage: str) -> torch.UntypedStorage | None:
        """Return a storage whose bytes are back; None for one of which a part had stayed."""
        ...

    def lend(self, storage: str, there: torch.UntypedStorage, begin: int, end: int) -> None:
        """Give up bytes begin:end of a storage whose other bytes stay."""
        ...

    def freed(self, size_bytes: int, address: int) -> None:
        """Note that a storage of this size at this address is gone."""
        ...

    def watch(self) -> None:
        """Begin to watch what the next call needs."""
        ...

    def watched(self, born_bytes: int) -> tuple[int, int]:
        """Return the workspace of the watched call, and how much of it memory that rests can serve, in bytes.

        The call brought `born_bytes` into being.
        """
        ...

    def abandon(
        self, storages: Mapping[str, torch.UntypedStorage], sizes: Mapping[str, int], extents: Mapping[str, Extent]
    ) -> None:
        """Let go of everything after a failure. What has an extent outlives the run, wherever it is."""
        ...
