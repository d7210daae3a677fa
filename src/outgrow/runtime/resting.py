"""What is a tensor whose bytes rest on the disk? A tensor like any other: its memory is a mapping of the file.

A storage that outlives the step is at every moment memory that its tensors can read: on the device, or a mapping of its
extent in a spill file. So between steps a model whose weights rest on the disk is a model, only slower to read, and a
step that fails leaves nothing behind that cannot be read.

    extent   bytes of a file that belong to one storage; free again when its mapping and its holders are gone
    rest     a storage whose bytes are in its extent changes places with a mapping of it
    home     a storage changes places with memory in which its bytes have arrived

All tensors over a storage go along, views and gradients and what optimizers keep, since the storage stays the same.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from queue import SimpleQueue
from threading import Lock
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, finalize

import torch

from outgrow.analysis.sinking import ROOM_BYTES
from outgrow.errors import TierFailure
from outgrow.ir.ranges import Ranges, joined, size_of, without
from outgrow.runtime import arena
from outgrow.runtime.medium import Medium, Tier
from outgrow.units import format_bytes, round_up


@dataclass(frozen=True, eq=False)
class Extent:
    """Bytes of a spill file that belong to one storage for as long as somebody holds this object."""

    file: "SpillFile"
    offset: int
    size_bytes: int


@dataclass(frozen=True, eq=False)
class _Resting:
    """A mapping of an extent; it dies with the mapping."""

    extent: Extent


_resting: WeakValueDictionary[int, _Resting] = WeakValueDictionary()
"""The mappings of extents by address."""


def extent_of(storage: torch.UntypedStorage) -> Extent | None:
    """Return the extent where a storage rests; None for one in memory."""
    found = _resting.get(storage.data_ptr())
    return None if found is None else found.extent


def is_exchangeable(storage: torch.UntypedStorage) -> bool:
    """Whether a storage may lie elsewhere from one moment to the next: nobody but torch has its address.

    Torch makes a storage unresizable when it hands its address to NumPy, or has it from others; `runtime.exported` does
    so for DLPack.
    """
    is_own = storage.device.type == "cuda" or not storage.is_shared()  # torch calls all memory of a GPU shared
    return storage.resizable() and is_own and arena.is_available()


def is_loaded(storage: torch.UntypedStorage) -> bool:
    """Whether a storage cannot be exchanged only because `torch.load` made it, and only one tensor is over it."""
    is_other = storage.device.type != "cpu" or storage.resizable() or storage.is_shared()
    return not is_other and _users(storage) == 1 and arena.is_available() and arena.is_loaded(storage)


def _users(storage: torch.UntypedStorage) -> int:
    """Return how many tensors are over a storage, views and those of NumPy arrays among them."""
    return torch._C._storage_Use_Count(storage._cdata) - 1  # noqa: SLF001 - `storage` itself is one more


def rest(storage: torch.UntypedStorage, extent: Extent) -> None:
    """Let a storage, whose bytes are in its extent, rest there: its memory goes back."""
    resting = _Resting(extent)
    mapping = extent.file.tier.mapped(extent.offset, extent.size_bytes, resting)
    _resting[mapping.data_ptr()] = resting
    arena.exchange(storage, mapping)


def forget(storage: torch.UntypedStorage) -> None:
    """Give back the memory that was taken by reading a storage that rests on the disk."""
    extent = extent_of(storage)
    if extent is not None:
        extent.file.tier.forget(storage)


def come_home(storage: torch.UntypedStorage) -> None:
    """Bring a storage that rests in the next tier back to memory of its device."""
    extent = extent_of(storage)
    if extent is not None and is_exchangeable(storage):
        arena.exchange(storage, extent.file.tier.home(extent.offset, storage))


def bring_home(
    storages: Iterable[torch.UntypedStorage], has_room: Callable[[torch.UntypedStorage], bool] = lambda _: True
) -> bool:
    """Bring those storages home that rest, up to one for which there is no room; return whether all have come.

    Where nothing rests in this process, none is looked at.
    """
    for storage in storages if _resting else ():
        if extent_of(storage) is not None and not has_room(storage):
            return False
        come_home(storage)
    return True


def in_memory(storages: Iterable[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
    """Return the distinct ones of storages that are in memory."""
    found = {item.data_ptr(): item for item in storages}
    return [item for address, item in found.items() if address not in _resting] if _resting else [*found.values()]


def resident_bytes(storages: Iterable[torch.UntypedStorage]) -> int:
    """Return the bytes of the distinct ones of storages that are in memory."""
    return sum(item.nbytes() for item in in_memory(storages))


@dataclass
class _Space:
    """The free ranges of a tier.

    A range may be given at any moment, in any thread, and while another one is taken: extents end with their last
    holder, which may be garbage. So what is given waits until somebody looks.
    """

    _free: Ranges = ()
    _given: SimpleQueue[tuple[int, int]] = field(default_factory=SimpleQueue[tuple[int, int]])

    def give(self, begin: int, end: int) -> None:
        """Free a range."""
        self._given.put((begin, end))

    @property
    def free(self) -> Ranges:
        """What is free; for one thread at a time, as what follows."""
        while not self._given.empty():
            self._free = joined(self._free, *self._given.get())
        return self._free

    def free_before(self, end: int) -> int:
        """What is free directly before a place."""
        return sum(last - begin for begin, last in self.free if last == end)

    def take(self, size_bytes: int) -> int | None:
        """Take this many bytes from the first free range that has them, and return where they begin."""
        for begin, end in self.free:
            if end - begin >= size_bytes:
                self._free = without(self._free, begin, begin + size_bytes)
                return begin
        return None

    def remove(self, begin: int, end: int) -> bool:
        """Forget exactly this free range; return whether there is one."""
        is_there = (begin, end) in self.free
        if is_there:
            self._free = without(self._free, begin, end)
        return is_there


@dataclass(eq=False)
class Quota:
    """The most bytes that some files may take, all together; None: as many as there are.

    Of the budget that the user has given, `buffers_bytes` are taken already, and are no part of the limit.
    """

    limit_bytes: int | None = None
    buffers_bytes: int = 0
    _files: "WeakSet[SpillFile]" = field(default_factory=WeakSet)

    def hold(self, file: "SpillFile") -> None:
        """Let what a file takes count from now on."""
        self._files.add(file)
        file.quotas[self] = None

    def require(self, more_bytes: int, tier: Tier) -> None:
        """Raise `TierFailure` unless a tier, which is one of the files', may take so much more."""
        needed = tier.size_bytes + more_bytes
        others = sum(file.size_bytes for file in self._files) - tier.size_bytes
        if self.limit_bytes is not None and needed + others > self.limit_bytes:
            beside = f", beside {format_bytes(others)} that other steps or models have there" if others else ""
            buffers = f", of which buffers take {format_bytes(self.buffers_bytes)}" if self.buffers_bytes else ""
            raise TierFailure(
                f"The plan needs {format_bytes(needed)} in {tier.place}{beside}, and the {tier.budget_name} is "
                f"{format_bytes(self.limit_bytes + self.buffers_bytes)}{buffers}. Raise the {tier.budget_name} or the "
                "memory budget."
            )


@dataclass(eq=False)
class SpillFile:
    """A tier that grows with what is taken of it, within its quotas; it is freed with its last holder.

    A quota ends with the step that it is of, which may be before what rests here.
    """

    medium: Medium
    quotas: WeakKeyDictionary[Quota, None] = field(default_factory=WeakKeyDictionary[Quota, None])
    _space: _Space = field(default_factory=_Space)
    _taking: Lock = field(default_factory=Lock)

    @cached_property
    def tier(self) -> Tier:
        """The tier itself, made when it is first needed."""
        made = self.medium.tier()
        if made.capacity_bytes:
            self._space.give(0, made.capacity_bytes)
        return made

    @property
    def size_bytes(self) -> int:
        """What it takes; nothing as long as nobody has asked for any of it."""
        return self.tier.size_bytes if "tier" in vars(self) else 0

    def take(self, size_bytes: int) -> Extent:
        """Return an extent of this size. Raises `TierFailure` if the disk budget or the disk is too small."""
        size, tier = round_up(size_bytes, ROOM_BYTES), self.tier
        with self._taking:
            offset = self._space.take(size)
            if offset is None:
                tier.release(self._space.remove)
                self._grow(size if tier.seam_bytes else size - self._space.free_before(tier.capacity_bytes))
                offset = self._space.take(size)
        assert offset is not None, "the file has grown by as much"
        return self._extent(offset, size_bytes)

    def take_free(self, size_bytes: int) -> Extent | None:
        """Return the first extent of this size that is free without growing; None if there is none."""
        with self._taking:
            offset = self._space.take(round_up(size_bytes, ROOM_BYTES))
        return None if offset is None else self._extent(offset, size_bytes)

    def _extent(self, offset: int, size_bytes: int) -> Extent:
        """Return an extent over what was taken, which is given back with it."""
        extent = Extent(self, offset, size_bytes)
        finalize(extent, self._space.give, offset, offset + round_up(size_bytes, ROOM_BYTES)).atexit = False
        return extent

    def make_room(self, size_bytes: int) -> None:
        """Let `size_bytes` be free, in ranges of whatever size. Raises `TierFailure` as `take` does."""
        tier = self.tier
        with self._taking:
            if size_bytes > size_of(self._space.free):
                tier.release(self._space.remove)
                self._grow(size_bytes - size_of(self._space.free))

    def _grow(self, size_bytes: int) -> None:
        tier = self.tier
        begin = tier.capacity_bytes + tier.seam_bytes
        end = begin + round_up(size_bytes, ROOM_BYTES)
        for quota in [*self.quotas]:
            quota.require(tier.taken_for(end - begin), tier)
        tier.grow(end)
        self._space.give(begin, end)


def copied_out(storage: torch.UntypedStorage, extent: Extent) -> None:
    """Copy a storage to its extent, now, and let it rest there. Raises `TierFailure` if the disk fails."""
    extent.file.tier.write(extent.offset, storage.data_ptr(), storage.nbytes())
    rest(storage, extent)
