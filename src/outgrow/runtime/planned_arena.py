"""What is the memory of a run whose addresses were planned? One arena, in which storages take turns at each byte.

A result is born at its address where the allocator can be directed (`runtime.directed`), and is copied there otherwise.
What comes back from the next tier is copied to its address; for what leaves, or dies, nothing is done: whoever has the
bytes next is ordered behind it (`runtime.flights`). A storage of which a part comes back may be seen elsewhere from
then on, where what stayed of it is shown too. Results of the step, which outlive it, are the allocator's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from outgrow.analysis.timeline import Lane
from outgrow.errors import ReplayMismatch, TierFailure
from outgrow.runtime.device import BesideHost, given_room
from outgrow.runtime.directed import Directions, Site
from outgrow.runtime.joined import joined
from outgrow.runtime.memory import storage_on
from outgrow.runtime.pages import Pages
from outgrow.runtime.program import Geometry, Program
from outgrow.runtime.recording import Moment
from outgrow.runtime.resting import Extent, copied_out, rest
from outgrow.runtime.results import compact, copied_to, is_oversized
from outgrow.runtime.score import Score, scored


@dataclass
class Arena:
    """The bytes of a device in which programs run, one after the other; taken when the first one needs them.

    With `directed` the device's allocator can be told where results go. Where the device has `pages` the arena is made
    of these, and each program has a window; else it is one tensor. `misplaced` counts the results of its runs that were
    born elsewhere and copied.
    """

    device: BesideHost
    directed: bool
    pages: Pages | None = None
    misplaced: int = 0
    _room: torch.Tensor | None = None
    _windows: dict[Program, int] = field(default_factory=dict[Program, int])
    _directions: dict[Program, Directions] = field(default_factory=dict[Program, Directions])
    _scores: dict[Program, Score] = field(default_factory=dict[Program, Score])

    @property
    def page_bytes(self) -> int:
        """The bytes of a page; 0 where there are none."""
        return 0 if self.pages is None else self.pages.page_bytes

    def reserve(self, size_bytes: int, most_bytes: int) -> None:
        """Have at least `size_bytes`, and not more than `most_bytes` left from another program. Raises `DeviceFull`."""
        if size_bytes <= self.size_bytes <= most_bytes:
            return
        if self.pages is None or self.size_bytes > most_bytes:
            self.close()
        if self.pages is None:
            self._room = self.device.room(size_bytes)
            return
        given_room(self.device, size_bytes - self.size_bytes, partial(self.pages.have, size_bytes))

    def moment(self) -> Moment:
        """Return a mark behind what operators were given so far."""
        return self.device.streams.mark(Lane.COMPUTE)

    @property
    def size_bytes(self) -> int:
        """The bytes that are taken."""
        if self.pages is not None:
            return self.pages.size_bytes
        return 0 if self._room is None else self._room.nbytes

    def address(self, program: Program) -> int:
        """Where the arena begins, as a program sees it. Raises `DeviceFull`, where tables of a window find no room."""
        if self.pages is None:
            assert self._room is not None, "the arena was reserved for the program"
            return self._room.data_ptr()
        if program not in self._windows:
            shown = partial(self.pages.show, program.placed.pages)
            self._windows[program] = given_room(self.device, program.placed.arena_bytes, shown)
        return self._windows[program]

    def memory_of(self, program: Program, *, is_timed: bool) -> "PlannedMemory":
        """Return the memory of a run of a program whose addresses were planned."""
        return PlannedMemory(self, program, self._directed(program), is_timed)

    def score(self, program: Program, there: Mapping[str, torch.UntypedStorage]) -> Score:
        """Return what is the same in every run of a program while the user's storages stay where they are."""
        known = self._scores.get(program)
        if known is None or known.there != {name: storage.data_ptr() for name, storage in there.items()}:
            known = joined(scored(program, self.address(program), self.device.torch_device, there))
            self._scores[program] = known
        return known

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage lies in the arena."""
        address = storage.data_ptr()
        if self.pages is not None:
            return self.pages.are_shown(address)
        return self._room is not None and 0 <= address - self._room.data_ptr() < self._room.nbytes

    def forget(self, program: Program) -> None:
        """A program will not run again."""
        self._directions.pop(program, None)
        self._scores.pop(program, None)
        window = self._windows.pop(program, None)
        if window is not None and self.pages is not None:
            self.pages.hide(window)

    def close(self) -> None:
        """Give the bytes back, once the device has done with them."""
        self._directions.clear()
        self._scores.clear()
        self._windows.clear()
        if self.size_bytes:
            self._room = None
            if self.pages is not None:
                self.pages.close()
            self.device.give_back()

    def _directed(self, program: Program) -> Directions | None:
        if not self.directed:
            return None
        if program not in self._directions:
            self._directions[program] = Directions(self.device.torch_device, self._sites(program))
        return self._directions[program]

    def _sites(self, program: Program) -> list[Site | None]:
        base, addresses = self.address(program), program.placed
        sites: list[Site | None] = []
        for at in range(len(program.instructions)):
            offset, size = addresses.scratch.get(at, (0, 0))
            stays = addresses.stays.get(at, {})
            aims = program.aims.get(at, ())
            # 0: it outlives the step, so the allocator that was there before serves it
            found = (base + stays[aim.storage] if aim.storage in stays else 0 for aim in aims)
            placed = tuple((aim.number, aim.size_bytes, place) for aim, place in zip(aims, found, strict=True))
            sites.append(Site(base + offset, size, placed) if size or placed else None)
        return sites


@dataclass
class PlannedMemory:
    """One run in an arena."""

    arena: Arena
    program: Program
    directions: Directions | None
    is_timed: bool
    _position: int = 0
    _is_directed: bool = False
    _begin: Moment = 0.0
    _arriving: dict[str, torch.UntypedStorage] = field(default_factory=dict[str, torch.UntypedStorage])

    def __post_init__(self) -> None:
        """Keep at hand what is asked for at every result."""
        self._address, self._kind = self.arena.address(self.program), self.arena.device.torch_device.type
        self._stays = self.program.placed.stays

    @property
    def high_water_bytes(self) -> int:
        return self.arena.device.high_water_bytes()

    def begin(self, free_bytes: int) -> Moment:  # noqa: ARG002 - its size is settled before
        self.arena.device.reset_high_water()
        self._begin = self.arena.moment()
        return self._begin

    def resting_bytes(self) -> int:
        """The arena is as large as the program needs."""
        return 0

    def moment(self) -> Moment:
        """A mark; where nobody asks for the times of operators, the beginning, since each mark costs some time."""
        return self.arena.moment() if self.is_timed else self._begin

    def end(self) -> Moment:
        """Raises `ReplayMismatch` if a library kept memory that was planned for others.

        The host does not wait: each copy was waited for by the stream of operators (invariant 5 of `ir.verify`), behind
        which the device reads what rests in memory of the host.
        """
        strays = 0 if self.directions is None else self.directions.strays()
        if strays:
            raise ReplayMismatch(
                f"A library kept {strays} pieces of workspace beyond the end of an operator, which it did not do "
                "before the step was planned, so results may be wrong. Load the last checkpoint, and run this step in "
                "eager mode."
            )
        return self.arena.moment()

    def leave_free(self, free_bytes: int) -> None:
        """Do nothing: the size of the arena was settled before the run (`Arena.reserve`)."""

    def before(self, position: int) -> None:
        self._position = position
        if self.directions is not None:
            self._is_directed = True  # before it is: an interrupt may come between
            self._is_directed = self.directions.at(position)

    def after(self) -> None:
        if self._is_directed and self.directions is not None:
            self.directions.off()
            self._is_directed = False

    def born(self, storage: str, item: torch.Tensor, geometry: Geometry, size_bytes: int) -> torch.Tensor:
        stays = self._stays.get(self._position)
        offset = None if stays is None else stays.get(storage)
        if offset is None or item.device.type != self._kind:
            if is_oversized(item, size_bytes):
                self.after()  # the copy outlives the step, so it is no scratch
            return compact(item, geometry, size_bytes)
        address = self._address + offset
        if item.untyped_storage().data_ptr() == address or not size_bytes:
            return item
        self.arena.misplaced += 1
        return copied_to(self._storage(address, size_bytes), item, geometry)

    def reserve(self, storage: str, begin: int, end: int, size: int, there: torch.UntypedStorage | None) -> int:  # noqa: ARG002
        address = self._address + self._stays[self._position][storage]
        self._arriving[storage] = self._storage(address, size)
        return address

    def arrived(self, storage: str) -> torch.UntypedStorage | None:
        return self._arriving.pop(storage, None)

    def lend(self, storage: str, there: torch.UntypedStorage, begin: int, end: int) -> None:
        """Do nothing: others have been planned to lie there."""

    def freed(self, size_bytes: int, address: int) -> None:
        """Do nothing: others have been planned to lie there."""

    def watch(self) -> None:
        raise AssertionError("operators of a device are rehearsed before the step is planned")

    def watched(self, born_bytes: int) -> tuple[int, int]:  # noqa: ARG002
        raise AssertionError("operators of a device are rehearsed before the step is planned")

    def abandon(
        self,
        storages: Mapping[str, torch.UntypedStorage],
        sizes: Mapping[str, int],  # noqa: ARG002
        extents: Mapping[str, Extent],
    ) -> None:
        """What outlives the run and lies in the arena goes to its extent: others will have its place in the arena.

        Where the tier takes nothing any more, the storage has what lies there from before. Raises the first
        `TierFailure` once all are safe.
        """
        self.after()
        if self.directions is not None:
            self.directions.strays()  # what the error keeps of an op that failed
        self._arriving.clear()
        failures: list[TierFailure] = []
        for name in extents:
            if name in storages and self.arena.holds(storages[name]):
                try:
                    copied_out(storages[name], extents[name])
                except TierFailure as failure:
                    failures.append(failure)
                    rest(storages[name], extents[name])
        if failures:
            raise failures[0]

    def _storage(self, address: int, size_bytes: int) -> torch.UntypedStorage:
        return storage_on(self.arena.device.torch_device, address, size_bytes)
