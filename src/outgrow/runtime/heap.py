"""What is the memory of a run on a CPU? What torch's allocator gives for results, and blocks for what comes back.

Storages that come back whole are tensors of the arena; a `Block` holds one that comes back in pieces. Where a part of a
storage is dropped, its memory is lent until the part comes back.

While an op is watched, nothing rests in the arena, and the process's high-water mark is taken around it: by how much
the process, or the arena, rose above the results is the op's workspace. Most libraries ask torch's allocator for it, so
what rests serves it too. For what they take elsewhere, and for small tensors, which the heap serves, what rests makes
room before the op.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

import torch

from outgrow.runtime import arena
from outgrow.runtime.freeing import is_on_heap, trim
from outgrow.runtime.memory import Block, give_back_mapped, lend, make_usable, room_for, take_back
from outgrow.runtime.process import counted_bytes, high_water_bytes, reset_high_water, without_files
from outgrow.runtime.program import Geometry
from outgrow.runtime.resting import Extent
from outgrow.runtime.results import compact


@dataclass
class Heap:
    """The tables of one run. `lent` are storages of which a part was given up."""

    blocks: dict[str, Block] = field(default_factory=dict[str, Block])
    arriving: dict[str, torch.UntypedStorage] = field(default_factory=dict[str, torch.UntypedStorage])
    lent: set[str] = field(default_factory=set[str])
    is_timed: bool = True
    _high_water: int = 0
    _before: int = 0
    _live: int = 0

    @property
    def high_water_bytes(self) -> int:
        """The most bytes that the process took since `begin`; marks that were reset meanwhile count too."""
        self._high_water = max(self._high_water, high_water_bytes())
        return self._high_water

    def begin(self, free_bytes: int) -> float:
        """Give back resting memory that there is no room for, such as that of what was just moved to the disk.

        What was read of the disk since the last run goes as well, be it of this step or of another one.
        """
        self.leave_free(free_bytes)
        give_back_mapped()
        reset_high_water()
        return perf_counter()

    def resting_bytes(self) -> int:
        return arena.resting_bytes()

    def moment(self) -> float:
        return perf_counter()

    def end(self) -> float:
        return perf_counter()

    def leave_free(self, free_bytes: int) -> None:
        arena.keep_at_most(free_bytes)

    def before(self, position: int) -> None:
        """Do nothing: addresses do not matter."""

    def after(self) -> None:
        """Do nothing: addresses do not matter."""

    def born(self, storage: str, item: torch.Tensor, geometry: Geometry, size_bytes: int) -> torch.Tensor:  # noqa: ARG002
        """Results stay where the allocator put them."""
        return compact(item, geometry, size_bytes)

    def reserve(self, storage: str, begin: int, end: int, size: int, there: torch.UntypedStorage | None) -> int:
        if there is not None:
            address = there.data_ptr()
            take_back(address + begin, end - begin)
            return address
        if end - begin == size:
            arriving = self.arriving[storage] = room_for(size)
            return arriving.data_ptr()
        block = self.blocks.get(storage)
        if block is None:
            block = self.blocks[storage] = Block(size)
        block.commit(begin, end)
        return block.address

    def arrived(self, storage: str) -> torch.UntypedStorage | None:
        block = self.blocks.pop(storage, None)
        return self.arriving.pop(storage, None) if block is None else block.storage()

    def lend(self, storage: str, there: torch.UntypedStorage, begin: int, end: int) -> None:
        lend(there.data_ptr() + begin, end - begin)
        self.lent.add(storage)

    def freed(self, size_bytes: int, address: int) -> None:
        """The caller's memory, or any where there is no arena, may have been on the heap, which keeps freed memory."""
        if size_bytes >= arena.LEAST_BYTES and is_on_heap(address):
            trim()

    def watch(self) -> None:
        arena.keep_at_most(0)
        _ = self.high_water_bytes
        reset_high_water()
        self._before = counted_bytes()
        arena.rise_bytes()
        self._live = arena.live_bytes()
        arena.watch()

    def watched(self, born_bytes: int) -> tuple[int, int]:
        seen, beside = arena.watched()
        top = max(high_water_bytes(), without_files(seen))
        self._high_water = max(self._high_water, top)
        after = counted_bytes() - arena.resting_bytes()
        stays = max(born_bytes, arena.live_bytes() - self._live)  # a batch that a thread loads meanwhile, too
        workspace = max(0, top - max(self._before + born_bytes, after), arena.rise_bytes() - stays)
        return workspace, max(0, workspace - beside)

    def abandon(
        self,
        storages: Mapping[str, torch.UntypedStorage],
        sizes: Mapping[str, int],
        extents: Mapping[str, Extent],  # noqa: ARG002 - what outlives the run has memory of its own
    ) -> None:
        arena.watched()  # the op that failed may have been watched, and nobody else begins the mark again
        for name in self.lent & storages.keys():
            make_usable(storages[name].data_ptr(), sizes[name])
        self.blocks.clear()
        self.arriving.clear()
