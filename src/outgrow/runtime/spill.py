"""Where on the disk does each storage lie? In extents of one spill file, which grows to what plans need.

    scratch   one extent for all that is born and dies in a step; a program says where in it each storage lies
    others    one extent for each storage that outlives the step and leaves the device

A storage that outlives the step is at every moment memory that its tensors can read: on the device, or a mapping of its
extent in the file. So between steps a model whose weights rest on the disk is a model, only slower to read, and a step
that fails leaves nothing behind that cannot be read. An extent is free again when its mapping and its holders are gone.

Space is reserved when a plan is made, so that a full disk is found then and not in the middle of a step.
"""

import ctypes
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary, finalize

import torch

from outgrow.analysis.timeline import Lane
from outgrow.errors import TierFailure
from outgrow.runtime import arena
from outgrow.runtime.links import Link
from outgrow.runtime.memory import Block, give_back, round_up
from outgrow.runtime.tiers import ALIGNMENT_BYTES, DiskTier
from outgrow.units import format_bytes


@dataclass(eq=False)
class Extent:
    """Bytes of a tier that belong to one storage for as long as someone holds this."""

    tier: DiskTier
    offset: int
    size_bytes: int


@dataclass(eq=False)
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

    Torch makes a storage unresizable when it hands its address to others (NumPy, DLPack), or has it from others.
    """
    return storage.device.type == "cpu" and storage.resizable() and not storage.is_shared() and arena.is_available()


def rest(storage: torch.UntypedStorage, extent: Extent) -> None:
    """Let a storage, whose bytes are in its extent, rest there: its memory goes back."""
    resting = _Resting(extent)
    mapping = extent.tier.mapped(extent.offset, extent.size_bytes, resting)
    _resting[mapping.data_ptr()] = resting
    arena.exchange(storage, mapping)


def settle(storage: torch.UntypedStorage, block: Block) -> None:
    """Let a storage lie in a block that has its bytes."""
    arena.exchange(storage, block.storage())


def forget(storage: torch.UntypedStorage) -> None:
    """Give back the memory that reading a storage took where it rests on the disk."""
    if extent_of(storage) is not None:
        give_back(storage)


def come_home(storage: torch.UntypedStorage) -> None:
    """Bring a storage that rests on the disk back to memory."""
    if extent_of(storage) is not None and is_exchangeable(storage):
        block = Block(storage.nbytes())
        block.commit(0, storage.nbytes())
        ctypes.memmove(block.address, storage.data_ptr(), storage.nbytes())
        settle(storage, block)


def resident_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages of tensors that are in memory."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({item.data_ptr(): item.nbytes() for item in storages if extent_of(item) is None}.values())


@dataclass
class _Space:
    """The free ranges of a tier, in order, none next to another."""

    free: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def free_bytes(self) -> int:
        """All that is free."""
        return sum(end - begin for begin, end in self.free)

    def take(self, size_bytes: int) -> int | None:
        """Return where a free range of this size begins, the first that there is."""
        for at, (begin, end) in enumerate(self.free):
            if end - begin >= size_bytes:
                self.free[at : at + 1] = [(begin + size_bytes, end)] if end - begin > size_bytes else []
                return begin
        return None

    def give(self, begin: int, end: int) -> None:
        """Free a range."""
        joined: list[tuple[int, int]] = []
        for other_begin, other_end in sorted([*self.free, (begin, end)]):
            if joined and joined[-1][1] == other_begin:
                joined[-1] = (joined[-1][0], other_end)
            else:
                joined.append((other_begin, other_end))
        self.free = joined


@dataclass
class Spill:
    """The spill file of one `Step` and the link to it; nothing exists on disk until a plan needs it."""

    folder: Path
    limit_bytes: int | None = None
    tier: DiskTier | None = None
    link: Link | None = None
    scratch: Extent | None = None
    _space: _Space = field(default_factory=_Space)

    def reserve(self, scratch_bytes: int, lasting_bytes: int = 0) -> "Spill | None":
        """Make room for so much scratch, and so much more for storages that outlive the step.

        Returns this, with a link that works, or None if nothing is needed. Raises `TierFailure` if the disk budget or
        the disk is too small.
        """
        if scratch_bytes + lasting_bytes == 0:
            return None
        if self.link is not None and self.link.failure is not None:
            self.link.close()
            self.link = None
        if self.scratch is None or self.scratch.size_bytes < scratch_bytes:
            self.scratch = None
            self.scratch = self.take(scratch_bytes) if scratch_bytes else None
        if self._space.free_bytes < lasting_bytes:
            self._grow(lasting_bytes - self._space.free_bytes)
        assert self.tier is not None, "a tier was made for what is needed"
        if self.link is None:
            self.link = Link(self.tier)
        return self

    def take(self, size_bytes: int) -> Extent:
        """Return an extent of this size. Raises `TierFailure` if the disk budget or the disk is too small."""
        size = round_up(size_bytes, ALIGNMENT_BYTES)
        offset = self._space.take(size)
        if offset is None:
            self._grow(size)
            offset = self._space.take(size)
        assert offset is not None, "the file has grown by as much"
        assert self.tier is not None, "a file that has grown is there"
        extent = Extent(self.tier, offset, size_bytes)
        finalize(extent, self._space.give, offset, offset + size).atexit = False
        return extent

    def arrange(self, storages: Mapping[str, torch.UntypedStorage], stowed: Collection[str]) -> dict[str, Extent]:
        """Bring storages to where a step wants them: those `stowed` to this tier, the others to memory.

        Returns the extents of those stowed. Raises `TierFailure` if the disk fails.
        """
        found: dict[str, Extent] = {}
        for name in stowed:
            storage = storages.get(name)
            if storage is None:  # the step makes it
                continue
            extent = extent_of(storage)
            if extent is None or extent.tier is not self.tier:
                extent = self.take(storage.nbytes())
                self._copied_out(name, storage, extent)
                rest(storage, extent)
            forget(storage)
            found[name] = extent
        for name, storage in storages.items():
            if name not in found:
                come_home(storage)
        return found

    def _copied_out(self, name: str, storage: torch.UntypedStorage, extent: Extent) -> None:
        assert self.link is not None, "the link was made when room was reserved"
        self.link.submit(Lane.OUT, name, storage.nbytes(), extent.offset, storage.data_ptr()).wait()

    def _grow(self, size_bytes: int) -> None:
        """Make the file larger, or make it."""
        begin = 0 if self.tier is None else self.tier.capacity_bytes
        end = begin + round_up(size_bytes, ALIGNMENT_BYTES)
        if self.limit_bytes is not None and end > self.limit_bytes:
            raise TierFailure(
                f"The plan needs {format_bytes(end)} in {self.folder}, and the disk budget is "
                f"{format_bytes(self.limit_bytes)}. Raise the disk budget or the memory budget."
            )
        if self.tier is None:
            self.tier = DiskTier(self.folder, end)
        else:
            self.tier.grow(end)
        self._space.give(begin, end)

    def close(self) -> None:
        """Stop the link and give the disk space back: at once, or when what rests there is needed no more."""
        if self.link is not None:
            self.link.close()
        if self.tier is not None:
            self.tier.close()
        self.link = self.tier = self.scratch = None
        self._space = _Space()
