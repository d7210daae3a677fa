"""What is the memory of a run whose addresses were planned? One arena, of which every byte has its turns.

A result is born at its address where the allocator can be directed (`runtime.directed`), and is copied there otherwise.
What comes back from the next tier is copied to its address; what leaves, or dies, needs nothing: whoever has the bytes
next is ordered behind it (`runtime.flights`). Results of the step, which outlive it, are the allocator's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from outgrow.analysis.timeline import Lane
from outgrow.errors import ReplayMismatch
from outgrow.plan import Addresses
from outgrow.runtime.device import Device
from outgrow.runtime.directed import Directions, Site
from outgrow.runtime.heap import compact, copied_to, is_loose
from outgrow.runtime.memory import storage_on
from outgrow.runtime.program import Geometry, Program
from outgrow.runtime.recording import Moment
from outgrow.runtime.resting import Extent, copied_out

_NOWHERE: Mapping[str, int] = {}


@dataclass
class Arena:
    """The bytes of a device in which programs run, one after the other; taken when the first one needs them.

    With `directed` the device's allocator can be told where results go.
    """

    device: Device
    directed: bool
    room: torch.Tensor | None = None
    _directions: dict[int, tuple[Program, Directions]] = field(default_factory=dict[int, tuple[Program, Directions]])

    def reserve(self, size_bytes: int, most_bytes: int) -> None:
        """Have so many bytes, and not too many, as another program may have wanted. Raises `DeviceFull`."""
        if self.room is not None and size_bytes <= self.room.nbytes <= most_bytes:
            return
        self.close()
        self.room = self.device.room(size_bytes)

    def moment(self) -> Moment:
        """Return a mark behind what operators were given so far."""
        return self.device.streams.mark(Lane.COMPUTE)

    @property
    def size_bytes(self) -> int:
        """The bytes that are taken."""
        return 0 if self.room is None else self.room.nbytes

    @property
    def address(self) -> int:
        """Where the arena begins."""
        assert self.room is not None, "the arena was reserved for the program"
        return self.room.data_ptr()

    def memory_of(self, program: Program, *, is_timed: bool) -> "Places":
        """Return the memory of a run of a program whose addresses were planned."""
        assert program.addresses is not None, "a program that runs in an arena has addresses"
        return Places(self, program.addresses, self._directed(program), is_timed, bool(program.lasting))

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage lies in the arena."""
        return self.room is not None and 0 <= storage.data_ptr() - self.address < self.size_bytes

    def forget(self, program: Program) -> None:
        """A program will not run again."""
        self._directions.pop(id(program), None)

    def close(self) -> None:
        """Give the bytes back, once the device has done with them."""
        self._directions.clear()
        if self.room is not None:
            self.room = None
            self.device.give_back()

    def _directed(self, program: Program) -> Directions | None:
        if not self.directed:
            return None
        if id(program) not in self._directions:  # which keeps the program, so that no other one has its identity
            made = Directions(self.device.torch_device, self._sites(program))
            self._directions[id(program)] = (program, made)
        return self._directions[id(program)][1]

    def _sites(self, program: Program) -> list[Site | None]:
        assert program.addresses is not None, "a program that runs in an arena has addresses"
        base, addresses = self.address, program.addresses
        sites: list[Site | None] = []
        for at in range(len(program.instructions)):
            offset, size = addresses.scratch.get(at, (0, 0))
            stays = addresses.stays.get(at, _NOWHERE)
            aims = program.aims.get(at, ())
            # 0: the allocator that was there before has it, since it outlives the step
            found = (base + stays[aim.storage] if aim.storage in stays else 0 for aim in aims)
            placed = tuple((aim.number, aim.size_bytes, place) for aim, place in zip(aims, found, strict=True))
            sites.append(Site(base + offset, size, placed) if size or placed else None)
        return sites


@dataclass
class Places:
    """One run in an arena. `misplaced` counts results that were born elsewhere and copied."""

    arena: Arena
    addresses: Addresses
    directions: Directions | None
    is_timed: bool
    has_lasting: bool = False
    misplaced: int = 0
    _position: int = 0
    _is_directed: bool = False
    _begin: Moment = 0.0
    _arriving: dict[str, torch.UntypedStorage] = field(default_factory=dict[str, torch.UntypedStorage])

    def __post_init__(self) -> None:
        """What is asked for at every result is at hand."""
        self._address, self._kind = self.arena.address, self.arena.device.torch_device.type

    @property
    def high_water_bytes(self) -> int:
        return self.arena.device.high_water_bytes()

    def begin(self, free_bytes: int) -> Moment:  # noqa: ARG002 - the arena is what it is
        self.arena.device.reset_high_water()
        self._begin = self._mark()
        return self._begin

    def moment(self) -> Moment:
        """A mark, or where nobody asks for the times of operators the beginning: each mark costs some time."""
        return self._mark() if self.is_timed else self._begin

    def end(self) -> Moment:
        """Raises `ReplayMismatch` if a library kept memory that was planned for others."""
        strays = 0 if self.directions is None else self.directions.strays()
        if strays:
            raise ReplayMismatch(
                f"A library kept {strays} pieces of workspace beyond the end of an operator, which it did not do "
                "before the step was planned, so results may be wrong. Load the last checkpoint, and run this step in "
                "eager mode."
            )
        if self.has_lasting:  # what rests in memory of the host is read there without asking the device
            self.arena.device.streams.mark(Lane.OUT).wait()
        return self._mark()

    def leave_free(self, free_bytes: int) -> None:
        """The arena is what it is."""

    def before(self, position: int) -> None:
        self._position = position
        if self.directions is not None:
            self._is_directed = self.directions.at(position)

    def after(self) -> None:
        if self._is_directed and self.directions is not None:
            self.directions.off()
            self._is_directed = False

    def born(self, storage: str, item: torch.Tensor, geometry: Geometry, size_bytes: int) -> torch.Tensor:
        stays = self.addresses.stays.get(self._position)
        offset = None if stays is None else stays.get(storage)
        if offset is None or item.device.type != self._kind:
            if is_loose(item, size_bytes):
                self.after()  # what it is copied to outlives the step, so it is no scratch
            return compact(item, geometry, size_bytes)
        address = self._address + offset
        if item.untyped_storage().data_ptr() == address or not size_bytes:
            return item
        self.misplaced += 1
        return copied_to(self._storage(address, size_bytes), item, geometry)

    def reserve(self, storage: str, begin: int, end: int, size: int, there: torch.UntypedStorage | None) -> int:  # noqa: ARG002
        if there is not None:
            return there.data_ptr()
        address = self.arena.address + self.addresses.stays[self._position][storage]
        self._arriving[storage] = self._storage(address, size)
        return address

    def arrived(self, storage: str) -> torch.UntypedStorage | None:
        return self._arriving.pop(storage, None)

    def lend(self, storage: str, there: torch.UntypedStorage, begin: int, end: int) -> None:
        """Others have been planned to lie there."""

    def freed(self, size_bytes: int, address: int) -> None:
        """Others have been planned to lie there."""

    def watch(self) -> None:
        raise AssertionError("operators of a device are rehearsed before the step is planned")

    def watched(self, born_bytes: int) -> int:  # noqa: ARG002
        raise AssertionError("operators of a device are rehearsed before the step is planned")

    def abandon(
        self,
        storages: Mapping[str, torch.UntypedStorage],
        sizes: Mapping[str, int],  # noqa: ARG002
        extents: Mapping[str, Extent],
    ) -> None:
        """What outlives the run and is in the arena goes to its extent: others will have its place."""
        self.after()
        self._arriving.clear()
        for name in extents.keys() & storages.keys():
            if self.arena.holds(storages[name]):
                copied_out(storages[name], extents[name])

    def _mark(self) -> Moment:
        return self.arena.moment()

    def _storage(self, address: int, size_bytes: int) -> torch.UntypedStorage:
        return storage_on(self.arena.device.torch_device, address, size_bytes)
