"""Every byte arrives where it was sent, whatever runs late; and what is not waited for is seen to go wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.analysis.timeline import Lane
from outgrow.errors import TierFailure
from outgrow.runtime import staged
from outgrow.runtime.device import Cuda
from outgrow.runtime.flights import StreamLink, measure_streams
from outgrow.runtime.links import Link
from outgrow.runtime.medium import AnyLink, Copy
from outgrow.runtime.memory import Block, bytes_on
from outgrow.runtime.pool import HostPool, LockPages
from outgrow.runtime.staged import StagedLink
from outgrow.runtime.tiers import DiskTier
from tests.runtime.memory import is_mapped
from tests.runtime.stand_in import Threads, sleepy

SIZE = 3 * 4096
"""The bytes of a storage; the last ones are not all moved (`MOVED`)."""
MOVED = SIZE - 96
CPU = torch.device("cpu")
PLACES = 6
"""How many storages there is room for."""


def unlocked(_address: int, _size_bytes: int) -> Callable[[], None]:
    """Leave memory as it is: where the device is the host, there is nothing to lock."""
    return lambda: None


def pool_of(size_bytes: int, lock: LockPages, device: torch.device = CPU) -> HostPool:
    """A pool of one piece."""
    pool = HostPool(device, lock)
    pool.grow(pool.seam_bytes + size_bytes)
    return pool


@dataclass
class Bench:
    """A link, the memory it moves, and how an operator is called."""

    link: AnyLink
    device: torch.device
    address: int
    keep: object
    call: Callable[[Callable[[], object]], object] = lambda work: work()
    """Runs an operator, now or later."""
    end: Callable[[], None] = lambda: None
    first: int = HostPool.seam_bytes

    def bytes(self, place: int) -> torch.Tensor:
        """The bytes of a place."""
        return bytes_on(self.device, self.address + place * SIZE, SIZE)


@contextmanager
def on_disk(folder: Path, _seed: int) -> Iterator[Bench]:
    """The link of a CPU."""
    block = Block(PLACES * SIZE)
    block.commit(0, PLACES * SIZE)
    with DiskTier(folder, 64 * SIZE) as tier:
        link = Link(tier)
        yield Bench(link, torch.device("cpu"), block.address, block, first=0)
        link.close()


@contextmanager
def on_threads(_folder: Path, seed: int) -> Iterator[Bench]:
    """The link of a device whose streams are threads, the one of operators too."""
    with on_streams(Threads(Lane, sleepy(seed))) as bench:
        yield bench


@contextmanager
def on_streams(streams: Threads) -> Iterator[Bench]:
    """The link of a device with these streams."""
    device, room = torch.device("cpu"), torch.full((PLACES * SIZE,), 0xFF, dtype=torch.uint8)
    link = StreamLink(streams, device, pool_of(64 * SIZE, unlocked))

    def call(work: Callable[[], object]) -> None:
        streams.give(Lane.COMPUTE, work)

    yield Bench(link, device, room.data_ptr(), room, call, streams.settle)
    link.close()


@contextmanager
def through_threads(folder: Path, seed: int) -> Iterator[Bench]:
    """The link of such a device to a disk, through buffers of a third of a storage."""
    streams = Threads(Lane, sleepy(seed))
    device, room = torch.device("cpu"), torch.full((PLACES * SIZE,), 0xFF, dtype=torch.uint8)
    with patch.object(staged, "PIECE_BYTES", 4096), DiskTier(folder, 64 * SIZE) as tier:
        own = Threads(pauses=sleepy(seed + 1)), Threads(pauses=sleepy(seed + 2))
        link = StagedLink(streams, own, device, tier, unlocked)

        def call(work: Callable[[], object]) -> None:
            streams.give(Lane.COMPUTE, work)

        yield Bench(link, device, room.data_ptr(), room, call, streams.settle, first=0)
        link.close()


@contextmanager
def through_cuda(folder: Path, _seed: int) -> Iterator[Bench]:
    """The link of a GPU to a disk."""
    gpu = Cuda(torch.device("cuda"))
    room = gpu.room(PLACES * SIZE)
    with DiskTier(folder, 64 * SIZE) as tier:
        own = gpu.more_streams(), gpu.more_streams()
        link = StagedLink(gpu.streams, own, gpu.torch_device, tier, gpu.lock)
        yield Bench(link, gpu.torch_device, room.data_ptr(), room, _behind_work, gpu.streams.settle, first=0)
        link.close()


def _behind_work(work: Callable[[], object]) -> None:
    torch.cuda._sleep(20_000)
    work()


@contextmanager
def on_cuda(_folder: Path, _seed: int) -> Iterator[Bench]:
    """The link of a GPU, which is kept busy before each operator."""
    gpu = Cuda(torch.device("cuda"))
    room = gpu.room(PLACES * SIZE)
    link = StreamLink(gpu.streams, gpu.torch_device, pool_of(64 * SIZE, gpu.lock, gpu.torch_device))
    yield Bench(link, gpu.torch_device, room.data_ptr(), room, _behind_work, gpu.streams.settle)
    link.close()


KINDS = [
    pytest.param(on_disk, id="disk"),
    pytest.param(on_threads, id="threads"),
    pytest.param(through_threads, id="threads-disk"),
    pytest.param(on_cuda, id="cuda", marks=pytest.mark.cuda),
    pytest.param(through_cuda, id="cuda-disk", marks=pytest.mark.cuda),
]
Moves = list[tuple[int, int]]


@dataclass
class Driver:
    """Makes a valid program out of any numbers: operators that write and read, copies out and in, each waited for.

    `where` gives the place of a storage that is there, `expected` the content of each, `in_flight` its copies.
    """

    bench: Bench
    where: dict[int, int] = field(default_factory=dict[int, int])
    away: list[int] = field(default_factory=list[int])
    expected: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    leaving: dict[int, Copy] = field(default_factory=dict[int, Copy])
    coming: dict[int, Copy] = field(default_factory=dict[int, Copy])
    seen: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list[tuple[torch.Tensor, torch.Tensor]])

    def move(self, kind: int, number: int) -> None:
        """Do one thing, to one of the storages for which it can be done."""
        steps = (self.bear, self.mix, self.send, self.drop, self.fetch, self.land)
        steps[kind % len(steps)](number)

    def _free(self) -> list[int]:
        return sorted(set(range(PLACES)) - set(self.where.values()))

    def _there(self) -> list[int]:
        """Storages that operators may read."""
        return [name for name in self.where if name not in self.coming]

    def bear(self, number: int) -> None:
        if free := self._free():
            name, place = len(self.expected), free[number % len(free)]
            self.where[name] = place
            content = torch.full((SIZE,), number % 251, dtype=torch.uint8).add_(torch.arange(SIZE) % 7)
            self.expected[name] = content
            target, source = self.bench.bytes(place), content.to(self.bench.device)
            self.bench.call(lambda: target.copy_(source))

    def mix(self, number: int) -> None:
        """Write one storage from another: not one whose copy is in flight."""
        readable = self._there()
        writable = [name for name in readable if name not in self.leaving]
        if not writable:
            return
        one, other = writable[number % len(writable)], readable[number // 7 % len(readable)]
        target, source = self.bench.bytes(self.where[one]), self.bench.bytes(self.where[other])
        self.bench.call(lambda: target.copy_(target * 3 + source))
        self.expected[one] = self.expected[one] * 3 + self.expected[other]

    def send(self, number: int) -> None:
        if there := [name for name in self._there() if name not in self.leaving]:
            name = there[number % len(there)]
            self.leaving[name] = self._copied(Lane.OUT, name)

    def drop(self, number: int) -> None:
        if self.leaving:
            name = sorted(self.leaving)[number % len(self.leaving)]
            self.leaving.pop(name).wait()
            del self.where[name]
            self.away.append(name)

    def fetch(self, number: int) -> None:
        if self.away and (free := self._free()):
            name = self.away.pop(number % len(self.away))
            self.where[name] = free[number // 5 % len(free)]
            self.coming[name] = self._copied(Lane.IN, name)

    def land(self, number: int) -> None:
        if self.coming:
            name = sorted(self.coming)[number % len(self.coming)]
            self.coming.pop(name).wait()
            self.look(name)

    def look(self, name: int) -> None:
        """Let an operator read what came back."""
        seen, source = torch.empty(MOVED, dtype=torch.uint8), self.bench.bytes(self.where[name])[:MOVED]
        self.seen.append((seen, self.expected[name][:MOVED].clone()))
        self.expected[name][MOVED:] = 0
        tail = self.bench.bytes(self.where[name])[MOVED:]
        self.bench.call(lambda: (seen.copy_(source), tail.zero_()))

    def finish(self) -> None:
        """Fetch all that is away, and look at everything."""
        for _ in range(len(self.leaving)):
            self.drop(0)
        while self.coming or self.away:
            for _ in range(len(self.coming)):
                self.land(0)
            for name in list(self.where):
                self.look(name)
                del self.where[name]
            self.fetch(0)
        for name in self.where:
            self.look(name)
        self.bench.end()
        for seen, expected in self.seen:
            assert torch.equal(seen, expected), "the bytes of a storage are not those that were written"

    def _copied(self, lane: Lane, name: int) -> Copy:
        address = self.bench.address + self.where[name] * SIZE
        return self.bench.link.submit(lane, str(name), MOVED, self.bench.first + name * SIZE, address)


@pytest.mark.parametrize("kind", KINDS)
@given(moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), max_size=60), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_byte_is_where_it_belongs(
    kind: Callable[[Path, int], Iterator[Bench]], disk_folder: Path, moves: Moves, seed: int
) -> None:
    """Random programs, each valid, with copies both ways beside operators: what is read is what was written."""
    with kind(disk_folder, seed) as bench:  # pyright: ignore[reportGeneralTypeIssues]
        driver = Driver(bench)
        for move in moves:
            if len(driver.expected) < 60:
                driver.move(*move)
        driver.finish()


def _in_turn(streams: Threads) -> None:
    """A program of which every wait matters: a place is written, copied, written over; the copy comes back there."""
    with on_streams(streams) as bench:
        driver = Driver(bench)
        for step in (driver.bear, driver.send, driver.drop):
            step(0)
        driver.bear(PLACES)  # in the same place, where it dies as soon as it was written
        assert driver.where.pop(1) == 0, "the place is used again"
        driver.fetch(0)
        driver.land(0)
        streams.settle()
        for seen, expected in driver.seen:
            assert torch.equal(seen, expected), "the bytes of a storage are not those that were written"


LATE = [{Lane.COMPUTE}, {Lane.OUT}, {Lane.IN}]


def _late(lanes: set[Lane], forgotten: set[int]) -> Threads:
    """Streams of which some are late with whatever they do."""
    return Threads(Lane, forgotten=forgotten, late=dict.fromkeys(lanes, 0.03))


def _goes_well(streams: Threads) -> bool:
    try:
        _in_turn(streams)
    except AssertionError:
        return False
    return True


def test_no_wait_can_be_left_out() -> None:
    """Without any one of the waits some stream that is late brings about wrong bytes; with all of them none does."""
    counted = _late(set(), set())
    _in_turn(counted)
    assert counted.waits == 4, "an operator before each copy, and one behind it"
    for lanes in LATE:
        _in_turn(_late(lanes, set()))
    for number in range(1, counted.waits + 1):
        assert not all(_goes_well(_late(lanes, {number})) for lanes in LATE), f"wait number {number} is of no use"


def test_rates_of_a_link_are_measured() -> None:
    """Rates and latency are positive numbers, whatever the device."""
    rates = measure_streams(Threads(), torch.device("cpu"), unlocked, 1 << 20, repetitions=1)
    assert min(rates.out_bytes_per_second, rates.in_bytes_per_second, rates.latency_seconds) > 0


def test_a_pool_that_cannot_be_locked_is_used_all_the_same() -> None:
    """The driver's refusal is said, with its reason and what to do."""
    with pytest.warns(UserWarning, match=r"did not lock 2\.0 MiB .*\(it returned 1\).*ulimit"):
        pool = pool_of(4096, lambda _address, _size: "it returned 1")
    assert not pool.is_locked
    assert pool.bytes(4096, 4096).sum() == 0


def test_nothing_rests_where_a_device_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locked memory may have another address there: it is for copies then, and a tensor over it is refused."""
    pool = pool_of(4096, unlocked)
    assert pool.mapped(4096, 16, None).nbytes() == 16
    monkeypatch.setattr("outgrow.runtime.pool.reaches_locked", lambda _device: False)
    with pytest.raises(TierFailure, match=r"do not reach at its addresses. Raise the memory budget"):
        pool.mapped(4096, 16, None)
    assert pool.bytes(4096, 16).sum() == 0


def test_a_piece_that_is_not_locked_leaves_the_others_reachable() -> None:
    """A driver may refuse when it has locked much already; what rests in locked pieces goes on resting there."""
    answers: list[Callable[[], None] | str] = [lambda: None, "it returned 2"]
    pool = HostPool(CPU, lambda _address, _size: answers.pop(0))
    pool.grow(8192)
    with pytest.warns(UserWarning, match=r"it returned 2"):
        pool.grow(8192 + pool.seam_bytes + 4096)
    assert pool.mapped(4096, 16, None).nbytes() == 16
    with pytest.raises(TierFailure, match="the driver did not lock"):
        pool.mapped(8192 + pool.seam_bytes, 16, None)


def test_pages_are_unlocked_before_they_go() -> None:
    """A pool that nobody needs any more is unlocked, once, while it is still there; its bytes keep it."""
    unlocked_pools: list[int] = []

    def lock(address: int, _size: int) -> Callable[[], None]:
        return lambda: unlocked_pools.append(address) if is_mapped(address) else None

    pool = pool_of(4096, lock)
    piece = pool.bytes(4096, 16)
    del pool
    assert not unlocked_pools
    address = piece.data_ptr()
    del piece
    assert unlocked_pools == [address]
    assert not is_mapped(address)


def test_a_pool_that_the_host_cannot_hold_is_refused() -> None:
    """More than is free is refused before it is touched, with both sizes."""
    with pytest.raises(TierFailure, match=r"4194304\.00 TiB of host memory are needed .* are free"):
        pool_of(1 << 62, unlocked)
