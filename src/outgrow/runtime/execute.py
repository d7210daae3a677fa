"""How does a program run? One instruction after the other, on real storages, while links move bytes beside it.

Where storages live, and what time it is, the memory of the device says (`runtime.device_memory`). A storage is freed at
once when it dies or is dropped, since nothing but the tables of this module refers to it. Values are views that are
made when they are first read and forgotten with their storage.

While an op runs that has not been measured yet, no copy is in flight, and the memory of the device is watched.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

from outgrow.analysis.cost import Cost
from outgrow.analysis.timeline import Lane
from outgrow.errors import OutgrowError, ReplayMismatch
from outgrow.ir.graph import Drop, SwapIn, SwapOut, Wait
from outgrow.runtime import arena
from outgrow.runtime.device_memory import DeviceMemory
from outgrow.runtime.heap import Heap
from outgrow.runtime.medium import Copy
from outgrow.runtime.program import Call, Geometry, Item, Program, Result
from outgrow.runtime.recording import Moment, Recording, seconds_between
from outgrow.runtime.resting import Extent, rest
from outgrow.runtime.results import results_of
from outgrow.runtime.spill import Spill


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gives: the result values, what was recorded, costs of ops that were observed, and the high water."""

    results: tuple[Item, ...]
    recording: Recording
    observed: Mapping[str, Cost]
    high_water_bytes: int


@dataclass
class Progress:
    """How far a run has come: whether persistent state of the user has been updated."""

    updating: bool = False


@dataclass
class Run:
    """The tables of one run of a program; `extents` are those of lasting storages.

    `values` are those that were computed or looked at already, and `made_of` their names by storage; `resting` are the
    bytes of the next tier by storage. Where a kernel gave a dimension of size 1 another stride than was captured, the
    value has its `strides` also when it comes back: operators read the memory format off them.

    An op counts from the time when the thread was free for it (`free_since`): what Python does between two ops, such as
    beginning transfers, is part of what the next one costs.
    """

    program: Program
    spill: Spill | None
    storages: dict[str, torch.UntypedStorage]
    scalars: dict[str, Item]
    capacity_bytes: int
    extents: Mapping[str, Extent] = field(default_factory=dict[str, Extent])
    memory: DeviceMemory = field(default_factory=Heap)
    observe: bool = False
    progress: Progress = field(default_factory=Progress)
    in_flight: dict[str, list[Copy]] = field(default_factory=dict[str, list[Copy]])
    values: dict[str, Item] = field(default_factory=dict[str, Item])
    made_of: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    resting: dict[str, int] = field(default_factory=dict[str, int])
    observed: dict[str, Cost] = field(default_factory=dict[str, Cost])
    recording: Recording = field(default_factory=lambda: Recording(0.0, 0.0))
    free_since: Moment = 0.0
    held: int = 0
    position: int = 0

    def start(self) -> None:
        """Begin to measure."""
        there = self.there_bytes()
        begin = self.memory.begin(self.capacity_bytes - there)
        self.recording = Recording(begin, perf_counter(), begun_bytes=there + self.memory.resting_bytes())
        self._hold(there)
        for name in self.storages:
            if name in self.program.stowed:
                self._rest(name, self.program.sizes[name])

    def there_bytes(self) -> int:
        """What the user's storages take of the device when the run begins."""
        return sum(item.nbytes() for name, item in self.storages.items() if name not in self.program.stowed)

    def advance(self, stop: int) -> None:
        """Run the instructions from where the run is up to number `stop`."""
        self.free_since = self.memory.moment()
        with by_program(self.spill, is_timed=self.memory.is_timed):
            for item in self.program.instructions[self.position : stop]:
                match item:
                    case Call():
                        self._call(item)
                    case SwapOut(storage, begin, end):
                        self._swap_out(storage, begin, end)
                    case SwapIn(storage, begin, end):
                        self._swap_in(storage, begin, end)
                    case Wait(storage):
                        self._wait(storage)
                    case Drop(storage, begin, end):
                        self._drop(storage, begin, end)
                self._bury()

    def read(self, names: Iterable[str]) -> tuple[Item, ...]:
        """Return values that are there at this point of the run."""
        return tuple(self.lookup(name) for name in names)

    def receive(self, returned: Sequence[torch.Tensor]) -> None:
        """Skip the call that comes next, taking what somebody else gives as its results."""
        call = self.program.instructions[self.position]
        assert isinstance(call, Call), "only a call returns something"
        now = self.free_since = self.memory.moment()
        self.memory.before(self.position)
        try:
            born = self._enter(call, returned)
        finally:
            self.memory.after()
        self._record(call, now, now, born, 0)
        self._bury()

    def _bury(self) -> None:
        """Free what dies with the present instruction and go on to the next."""
        for storage in self.program.dies.get(self.position, ()):
            self._release(storage)
            rested = self.resting.pop(storage, 0)
            if rested:
                self._hold(0, -rested)
        self.position += 1

    def finish(self) -> Outcome:
        """Return what came of the run."""
        return self.ended(self.read(self.program.results))

    def ended(self, results: tuple[Item, ...]) -> Outcome:
        """End a run that has these results."""
        self.recording.host_end = perf_counter()
        self.recording.end = self.memory.end()
        return Outcome(results, self.recording, self.observed, self.memory.high_water_bytes)

    def abandon(self) -> None:
        """Let go of everything after a failure: wait for copies in flight, whatever came of them, and free memory.

        Who interrupts it waits as well: a copy must not end in memory that others have by then.
        """
        interrupt = None
        try:
            if self.spill is not None:
                interrupt = _settled(self.spill)
        finally:
            try:
                self.memory.abandon(self.storages, self.program.sizes, self.extents)
            finally:
                for table in (self.in_flight, self.values, self.made_of, self.storages):
                    table.clear()
                self.extents = {}  # an error that somebody keeps would keep the run, and its space
        if interrupt is not None:
            raise interrupt

    def _hold(self, size_bytes: int, tier_bytes: int = 0) -> None:
        self.held += size_bytes
        self.recording.memory.append((self.memory.moment(), size_bytes, tier_bytes))

    def _rest(self, storage: str, size_bytes: int) -> None:
        """Note what a storage takes of the next tier; a second copy takes the place of the first."""
        more = size_bytes - self.resting.get(storage, 0)
        if more > 0:
            self.resting[storage] = size_bytes
            self._hold(0, more)

    def _make_room(self, size_bytes: int = 0) -> None:
        """Let only so much memory rest that there is room for what is held and for `size_bytes` more."""
        self.memory.leave_free(self.capacity_bytes - self.held - size_bytes)

    def lookup(self, name: str) -> Item:
        """Return a value, made now if nobody has looked at it yet."""
        found = self.values.get(name)
        return self._seen(name) if found is None else found

    def _seen(self, name: str) -> Item:
        """Return a value that nobody has looked at yet."""
        scalar = self.scalars.get(name)
        if scalar is not None:
            return scalar
        found = self.view_of(name)
        self._keep(name, self.program.geometry[name].storage, found)
        return found

    def view_of(self, name: str) -> torch.Tensor:
        """Return a value as a new view of its storage."""
        geometry = self.program.geometry[name]
        assert geometry.dtype is not None, f"scalar {name} is read before it is computed"
        if name in self.strides:
            geometry = replace(geometry, strides=self.strides[name])
        return geometry.over(self.storages[geometry.storage])

    def _keep(self, name: str, storage: str, item: torch.Tensor) -> None:
        """Keep a value for as long as its storage is there."""
        self.values[name] = item
        names = self.made_of.get(storage)
        if names is None:
            self.made_of[storage] = [name]
        else:
            names.append(name)

    def forget(self, storage: str) -> None:
        """Let go of the values of a storage."""
        for name in self.made_of.pop(storage, ()):
            self.values.pop(name, None)

    def _call(self, call: Call) -> None:
        cost = self.program.costs.get(call.captured)
        if self.observe and (cost is None or not cost.measured) and call.captured not in self.observed:
            self._observe(call)
            return
        workspace = cost.workspace_bytes if cost else 0
        if cost and workspace > cost.served_bytes:
            self._make_room(workspace - cost.served_bytes)
        self.recording.give(self.free_since)
        begin = self.memory.moment()
        born = self._apply(call)
        self._record(call, begin, self.memory.moment(), born, workspace)

    def _record(self, call: Call, begin: Moment, end: Moment, born: int, workspace: int) -> None:
        self.progress.updating = self.progress.updating or call.updates
        if self.memory.is_timed:
            self.recording.ops.append((call.name, self.free_since, end))
        self.free_since = end
        self.held += born
        if born:
            self._make_room()
        if workspace:
            self.recording.memory.append((begin, born + workspace, 0))
            self.recording.memory.append((end, -workspace, 0))
        elif born:
            self.recording.memory.append((begin, born, 0))

    def _observe(self, call: Call) -> None:
        """Run an op with nothing in flight beside it, and note its seconds as captured, and its workspace."""
        for tickets in self.in_flight.values():
            for ticket in tickets:
                ticket.wait()
        self.memory.watch()
        begin = self.free_since = self.memory.moment()
        born = self._apply(call)
        end = self.memory.moment()
        workspace, served = self.memory.watched(born)
        seconds = seconds_between(begin, end) / call.slowdown
        self.observed[call.captured] = Cost(seconds, workspace, served, measured=True)
        self._record(call, begin, end, born, workspace)

    def _apply(self, call: Call) -> int:
        """Run an op, enter its results, and return the bytes that were born."""
        if call.updates:
            self.progress.updating = True
        self.memory.before(self.position)
        try:
            returned = call.run(self.lookup)
            born = self._enter(call, returned)
            del returned
        finally:
            self.memory.after()  # here, since another thread may be the one that abandons the run
        return born

    def _enter(self, call: Call, returned: object) -> int:
        """Enter what an op returned, and return the bytes that were born."""
        born = 0
        for result, item in zip(call.results, results_of(returned), strict=False):
            if result is not None and item is not None:  # a result that is read, and a gradient that was asked for
                born += self.enter_one(call, result, item)
        return born

    def enter_one(self, call: Call, result: Result, item: object) -> int:
        """Enter one result of an op, and return the bytes that were born with it."""
        if not isinstance(item, torch.Tensor):
            assert isinstance(item, int | float), f"{call.name} gives a tensor or a number, not {type(item)}"
            self.scalars[result.value] = item
            return 0
        geometry = result.geometry
        if not is_as_captured(item, geometry):
            require_as_captured(call, item, geometry)
            self.strides[result.value] = item.stride()
        born = 0
        if result.born is not None:
            item = self.memory.born(result.born, item, geometry, result.size_bytes)
            storage = self.storages[result.born] = item.untyped_storage()
            born = storage.nbytes()
        self._keep(result.value, geometry.storage, item)
        return born

    def _offset_of(self, storage: str) -> int:
        """Return where a storage begins in its tier."""
        if storage in self.program.lasting:
            return self.extents[storage].offset
        return self._spill_of(storage).scratch_offset + self.program.offsets[storage]

    def _spill_of(self, storage: str) -> Spill:
        assert self.spill is not None, "a program with transfers has a next tier"
        if storage not in self.program.sunk:
            return self.spill
        assert self.spill.below is not None, "what sinks has a tier below"
        return self.spill.below

    def _swap_out(self, storage: str, begin: int, end: int) -> None:
        self._rest(storage, end - begin)
        self.submit(Lane.OUT, storage, begin, end, self.storages[storage].data_ptr() + begin)

    def _swap_in(self, storage: str, begin: int, end: int) -> None:
        self.memory.before(self.position)
        address = self.reserve(storage, begin, end)
        self._hold(end - begin)
        self._make_room()
        self.submit(Lane.IN, storage, begin, end, address + begin)

    def reserve(self, storage: str, begin: int, end: int) -> int:
        """Make room for a part of a storage that comes back, and return where the storage begins."""
        there = None if storage in self.program.lasting else self.storages.get(storage)
        return self.memory.reserve(storage, begin, end, self.program.sizes[storage], there)

    def submit(self, lane: Lane, storage: str, begin: int, end: int, address: int) -> None:
        """Begin a copy of bytes begin:end of a storage between its tier and the device, from `address` on."""
        link = self._spill_of(storage).link
        assert link is not None, "room was reserved, with a link"
        ticket = link.submit(lane, storage, end - begin, self._offset_of(storage) + begin, address)
        self.in_flight.setdefault(storage, []).append(ticket)

    def _wait(self, storage: str) -> None:
        self.arrive(storage)
        self.free_since = self.memory.moment()

    def arrive(self, storage: str) -> None:
        """Wait until no copy of a storage is in flight, and let what has come back take its place."""
        for ticket in self.in_flight.pop(storage, ()):
            ticket.wait()
            if self.memory.is_timed:
                self.recording.copies.append(ticket)
        arrived = self.memory.arrived(storage)
        if arrived is not None and storage in self.program.lasting:
            arena.exchange(self.storages[storage], arrived)
        elif arrived is not None:
            self.forget(storage)  # of what had left in part, and is elsewhere now
            self.storages[storage] = arrived

    def _drop(self, storage: str, begin: int, end: int) -> None:
        is_whole = end - begin == self.program.sizes[storage]
        if is_whole:
            self.forget(storage)
        self._hold(-self.drop(storage, begin, end))

    def drop(self, storage: str, begin: int, end: int) -> int:
        """Free device bytes of a storage whose content rests in the tier; the caller's storages stay readable there.

        Returns how many.
        """
        if end - begin < self.program.sizes[storage]:
            assert storage not in self.program.lasting, "the law of swapping drops what outlives the step as a whole"
            self.memory.lend(storage, self.storages[storage], begin, end)
            return end - begin
        if storage not in self.program.lasting:
            return self.let_go(storage)
        lasting = self.storages[storage]
        address = lasting.data_ptr()
        rest(lasting, self.extents[storage])
        self.memory.freed(lasting.nbytes(), address)
        return lasting.nbytes()

    def _release(self, storage: str) -> None:
        """Free the device bytes of a storage now."""
        self.forget(storage)
        size = self.let_go(storage)
        if size:
            self._hold(-size)

    def let_go(self, storage: str) -> int:
        """Free the device bytes of a storage to which no value refers any more, and return how many."""
        freed = self.storages.pop(storage, None)
        if freed is None:
            return 0
        size, address = freed.nbytes(), freed.data_ptr()
        del freed
        self.memory.freed(size, address)
        return size


@contextmanager
def by_program(spill: Spill | None, *, is_timed: bool) -> Iterator[None]:
    """Within it ops do what the program says: nothing is differentiated or cast, and links carry bytes."""
    serving = nullcontext() if spill is None else spill.serving(is_timed=is_timed)
    with torch.no_grad(), torch._C._DisableAutocast(), serving:  # noqa: SLF001 - casts are ops of the program
        yield


def _settled(spill: Spill) -> BaseException | None:
    """Wait until no copy is in flight; return what interrupted that, if something did. A device may fail meanwhile."""
    interrupt: BaseException | None = None
    while True:
        try:
            spill.settle()
        except (RuntimeError, OutgrowError):
            raise
        except BaseException as error:  # noqa: BLE001 - raised again: the handler of a signal raises what it likes
            interrupt = error
        else:
            return interrupt


def require_as_captured(call: Call, item: torch.Tensor, geometry: Geometry) -> None:
    """Raise `ReplayMismatch` unless the op returned what the capture foresaw: views of it would be wrong."""
    if is_as_captured(item, geometry):
        return
    found = Geometry(geometry.storage, item.dtype, tuple(item.shape), item.stride(), int(item.storage_offset()))
    if _essence(found) != _essence(geometry):
        raise ReplayMismatch(
            f"{call.name} returned {_essence(found)}, but {_essence(geometry)} was captured (dtype, offset, then "
            "size and stride of each dimension). The operator lays out its result otherwise than its abstract form; "
            "run this step in eager mode."
        )


def is_as_captured(item: torch.Tensor, geometry: Geometry) -> bool:
    """Whether a tensor lies in its storage as was captured, to the last stride."""
    return (
        item.shape == geometry.shape
        and item.stride() == geometry.strides
        and item.dtype is geometry.dtype
        and item.storage_offset() == geometry.offset
    )


def _essence(geometry: Geometry) -> tuple[object, ...]:
    """What of a layout matters for bytes: the stride of a dimension of size 1 does not."""
    if 0 in geometry.shape:
        return (geometry.dtype, geometry.shape)
    sized = zip(geometry.shape, geometry.strides, strict=True)
    return (geometry.dtype, geometry.offset, tuple((size, stride if size > 1 else 0) for size, stride in sized))
