"""Copies run in order beside the caller, give back every byte, and tell what went wrong to whoever waits."""

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.analysis.timeline import Lane
from outgrow.errors import TierFailure
from outgrow.runtime.links import Link, Ticket, handing_over, measure_link, measured_rates
from outgrow.runtime.memory import Block
from outgrow.runtime.tiers import DiskTier
from outgrow.units import MIB
from tests.runtime.memory import bytes_of, filled, open_spill_files, put


@pytest.fixture
def tier(disk_folder: Path) -> Iterator[DiskTier]:
    """A tier of 16 MiB on a disk."""
    with DiskTier(disk_folder, 16 * MIB) as made:
        yield made


@pytest.fixture
def link(tier: DiskTier) -> Iterator[Link]:
    """A link to it."""
    made = Link(tier)
    yield made
    made.close()


def committed(size: int) -> Block:
    """A block whose bytes are all there."""
    block = Block(size)
    block.commit(0, size)
    return block


@dataclass
class Gate:
    """A disk that moves nothing before it is opened, and fails where told to; `calls` are offsets."""

    monkeypatch: pytest.MonkeyPatch
    failing_offset: int | None = None
    open: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    calls: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(os, "pwritev", self._gated(os.pwritev))
        self.monkeypatch.setattr(os, "preadv", self._gated(os.preadv))

    def _gated(self, real: Callable[..., int]) -> Callable[..., int]:
        def transfer(file: int, buffers: list[memoryview], offset: int) -> int:
            self.calls.append(offset)
            self.reached.set()
            self.open.wait()
            if offset == self.failing_offset:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(file, buffers, offset)

        return transfer


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tier: DiskTier) -> Iterator[Gate]:  # noqa: ARG001 - closed after it
    made = Gate(monkeypatch)
    yield made
    made.open.set()


# ---- Bytes and order


@dataclass
class Place:
    """A storage of the fuzz: where it lies in memory and tier, and what it must hold."""

    size: int
    at: int
    offset: int
    content: bytes = b""
    trips: int = 0
    is_away: bool = False
    block: Block | None = None
    in_flight: list[Ticket] = field(default_factory=list[Ticket])

    @property
    def address(self) -> int:
        assert self.block is not None
        return self.block.address + self.at


def make_places(sizes: list[tuple[int, int]]) -> list[Place]:
    places: list[Place] = []
    offset = 0
    for size, at in sizes:
        places.append(Place(size, at, offset, block=committed(size + at)))
        offset += -(-size // 4096) * 4096
    return places


def land(place: Place) -> None:
    """Wait for a storage; drop it if it went out, and compare its bytes if it came back."""
    lanes = {ticket.lane for ticket in place.in_flight}
    for ticket in place.in_flight:
        ticket.wait()
    place.in_flight.clear()
    if Lane.OUT in lanes:
        place.block, place.is_away = None, True
    if Lane.IN in lanes:
        place.is_away = False
        assert bytes_of(place.address, place.size) == place.content


def send(link: Link, name: str, place: Place, cut: int) -> None:
    """Begin what comes next for a storage: out in one, with new bytes, or back in two pieces."""
    if not place.is_away:
        place.trips += 1
        place.content = filled(place.size, seed=place.offset + place.trips)
        put(place.address, place.content)
        place.in_flight.append(link.submit(Lane.OUT, name, place.size, place.offset, place.address))
        return
    place.block = committed(place.size + place.at)
    middle = min(place.size, cut * 4096)
    for begin, end in ((middle, place.size), (0, middle)):
        if begin == end:
            continue
        address = place.address + begin
        place.in_flight.append(link.submit(Lane.IN, name, end - begin, place.offset + begin, address))


storage_sizes = st.tuples(st.integers(1, 300_000) | st.sampled_from([4096, 65536, MIB]), st.sampled_from([0, 0, 64]))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(storage_sizes, min_size=1, max_size=8), data=st.data())
def test_every_byte_comes_back(tier: DiskTier, sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """Many storages on their way in both directions at once, waited for in any order, keep their bytes."""
    link, places = Link(tier), make_places(sizes)
    moves = st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, 80)), max_size=40)
    try:
        for at, cut in data.draw(moves):
            if places[at].in_flight:
                land(places[at])
            else:
                send(link, str(at), places[at], cut)
        for at, place in enumerate(places):
            land(place)
            if place.is_away:
                send(link, str(at), place, 1)
                land(place)
    finally:
        link.settle()
        link.close()


def test_copies_of_a_direction_run_in_order(link: Link, gate: Gate) -> None:
    """First come, first served; the times of the tickets say so too."""
    block = committed(16 * 4096)
    tickets = [link.submit(Lane.OUT, str(at), 4096, at * 4096, block.address) for at in (3, 1, 2, 0)]
    gate.open.set()
    for ticket in tickets:
        ticket.wait()
    assert [offset // 4096 for offset in gate.calls] == [3, 1, 2, 0]
    times = [moment for ticket in tickets for moment in (ticket.begin, ticket.end)]
    assert times == sorted(times)


def test_directions_do_not_wait_for_each_other(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy back ends while a copy out is held up."""
    block, held = committed(8192), threading.Event()
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda *args: (held.wait(), real(*args))[1])
    out = link.submit(Lane.OUT, "a", 4096, 0, block.address)
    link.submit(Lane.IN, "b", 4096, 4096, block.address + 4096).wait()
    assert not out.has_ended
    held.set()
    out.wait()


def test_a_storage_is_not_sent_both_ways_at_once(link: Link, gate: Gate) -> None:
    """Reading a storage back while it is written is a bug of the program, found before bytes are lost."""
    block = committed(4096)
    out = link.submit(Lane.OUT, "a", 4096, 0, block.address)
    with pytest.raises(AssertionError, match="a is to be copied in while it is copied out: wait for it first"):
        link.submit(Lane.IN, "a", 4096, 0, block.address)
    gate.open.set()
    out.wait()


def test_settling_a_link_waits_for_all(link: Link, gate: Gate) -> None:
    """Tickets that were forgotten are waited for as well."""
    block = committed(8 * 4096)
    tickets = [
        link.submit(lane, f"{lane}{at}", 4096, (4 * way + at) * 4096, block.address + (4 * way + at) * 4096)
        for way, lane in enumerate((Lane.OUT, Lane.IN))
        for at in range(4)
    ]
    gate.open.set()
    link.settle()
    assert all(ticket.has_ended for ticket in tickets)


# ---- Failures


def test_a_failure_is_raised_at_every_wait(link: Link, gate: Gate) -> None:
    """The message names the storage and what the disk said; settling does not raise."""
    gate.failing_offset = 4096
    block = committed(4096)
    ticket = link.submit(Lane.OUT, "conv_3", 4096, 4096, block.address)
    gate.open.set()
    ticket.settle()
    for _ in range(2):
        with pytest.raises(TierFailure, match=r"conv_3 was not copied out: Writing 4096 bytes at offset 4096"):
            ticket.wait()
    assert link.failure is ticket.failure is not None
    assert ticket.begin <= ticket.end


def test_after_a_failure_the_disk_is_left_alone(link: Link, gate: Gate) -> None:
    """What was queued or comes later, in both directions, is refused with the first reason."""
    gate.failing_offset = 0
    block = committed(5 * 4096)
    good = link.submit(Lane.OUT, "good", 4096, 4 * 4096, block.address)
    first = link.submit(Lane.OUT, "first", 4096, 0, block.address)
    queued = link.submit(Lane.OUT, "queued", 4096, 4096, block.address)
    gate.open.set()
    good.wait()
    first.settle()
    later = link.submit(Lane.IN, "later", 4096, 2 * 4096, block.address)
    for ticket in (queued, later):
        with pytest.raises(TierFailure, match=rf"{ticket.storage} is not copied .* any more\. first was not copied"):
            ticket.wait()
    assert gate.calls == [4 * 4096, 0]
    link.settle()


def test_a_failure_does_not_keep_the_disk_space(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps the exception does not keep the spill file open."""
    before = open_spill_files()
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    tier = DiskTier(disk_folder, MIB)
    link = Link(tier)
    block = committed(4096)
    ticket = link.submit(Lane.IN, "a", 4096, 0, block.address)
    with pytest.raises(TierFailure) as kept:
        ticket.wait()
    link.close()
    tier.close()
    assert kept.value.__cause__ is not None
    assert open_spill_files() == before


def test_no_memory_for_a_bounce_buffer_reaches_the_waiter(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in the thread, and not on the disk, is told all the same."""

    def refuse(_block: Block, _begin: int, _end: int) -> None:
        raise MemoryError("The kernel refused 4.0 MiB")

    block = committed(8192)
    monkeypatch.setattr(Block, "commit", refuse)
    ticket = link.submit(Lane.OUT, "a", 4096, 0, block.address + 64)
    with pytest.raises(TierFailure, match=r"a was not copied out: The kernel refused 4\.0 MiB"):
        ticket.wait()


def test_a_bug_in_a_copy_reaches_the_waiter(link: Link) -> None:
    """An extent outside the tier does not leave the waiter waiting."""
    ticket = link.submit(Lane.IN, "a", 4096, 1 << 40, 0)
    with pytest.raises(TierFailure, match="not in a tier") as found:
        ticket.wait()
    assert isinstance(found.value.__cause__, TierFailure)
    assert isinstance(found.value.__cause__.__cause__, AssertionError)


def test_waiting_can_be_interrupted(link: Link, gate: Gate) -> None:
    """Ctrl-C ends the wait and not the copy, which can be waited for again."""
    block, interrupted = committed(4096), threading.Event()

    def raise_once(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def press() -> None:  # more than once: a signal just before the wait begins is seen after it
        while not interrupted.wait(0.01):
            os.kill(os.getpid(), signal.SIGINT)

    pressing, ticket = threading.Thread(target=press), link.submit(Lane.OUT, "a", 4096, 0, block.address)
    before = signal.signal(signal.SIGINT, raise_once)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before the wait
            pressing.start()
            ticket.wait()
        pressing.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not ticket.has_ended
    gate.open.set()
    ticket.wait()


# ---- The end


def test_closing_refuses_what_is_queued(link: Link, gate: Gate) -> None:
    """The running copy ends well, those behind it are refused without a touch of the disk."""
    block = committed(100 * 4096)
    tickets = [link.submit(Lane.OUT, str(at), 4096, at * 4096, block.address) for at in range(100)]
    gate.reached.wait()
    closing = threading.Thread(target=link.close)
    closing.start()
    while not link._is_closed:
        pass
    gate.open.set()
    closing.join()
    tickets[0].wait()
    for ticket in tickets[1:]:
        with pytest.raises(TierFailure, match=r"any more\. The link to the spill file in .* was closed"):
            ticket.wait()
    assert gate.calls == [0]


def test_a_closed_link_refuses(link: Link) -> None:
    """Closing twice is fine, and a copy submitted afterwards is refused at its wait."""
    link.close()
    link.close()
    link.settle()
    with pytest.raises(TierFailure, match="was closed"):
        link.submit(Lane.IN, "a", 4096, 0, 0).wait()


def copying_threads() -> int:
    return sum(thread.name.startswith("outgrow-") for thread in threading.enumerate())


def test_closing_ends_the_threads(tier: DiskTier) -> None:
    """No thread is left when `close` returns."""
    before = copying_threads()
    link = Link(tier)
    assert copying_threads() == before + 2
    link.close()
    assert copying_threads() == before


def test_a_link_without_all_its_threads_has_none(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may have no more threads after the first."""
    before, start, started = copying_threads(), threading.Thread.start, list[threading.Thread]()

    def started_once(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started_once)
    with pytest.raises(RuntimeError, match="can't start"):
        Link(tier)
    gc.collect()
    started[0].join(60)
    assert copying_threads() == before


def test_a_forgotten_link_ends(disk_folder: Path) -> None:
    """Threads and disk space go when nobody refers to link and tier any more."""
    before = open_spill_files()
    link = Link(DiskTier(disk_folder, MIB))
    threads = link._threads
    del link
    gc.collect()
    for thread in threads:
        thread.join()
    assert open_spill_files() == before


# ---- The switch interval


def test_the_switch_interval_is_short_only_while_copies_are_made() -> None:
    """The user's own interval is back when the last who makes copies is done, whatever came of them."""

    def fail() -> None:
        with handing_over():
            assert sys.getswitchinterval() < found
        assert sys.getswitchinterval() < found
        raise TierFailure("The disk is full.")

    found = sys.getswitchinterval()
    with pytest.raises(TierFailure), handing_over():
        fail()
    assert sys.getswitchinterval() == found


def test_a_switch_interval_that_the_user_sets_meanwhile_stays() -> None:
    """What was set while copies were made is not overwritten after them."""
    found = sys.getswitchinterval()
    try:
        with handing_over():
            sys.setswitchinterval(0.002)
        assert sys.getswitchinterval() == 0.002
    finally:
        sys.setswitchinterval(found)


# ---- Rates


def test_measured_rates_are_positive(disk_folder: Path) -> None:
    """The link is measured with real copies, and everything that was used for it is freed."""
    files, threads = open_spill_files(), copying_threads()
    rates = measure_link(disk_folder)
    assert rates.out_bytes_per_second > 0
    assert rates.in_bytes_per_second > 0
    assert rates.latency_seconds > 0
    assert (open_spill_files(), copying_threads()) == (files, threads)
    assert list(disk_folder.iterdir()) == []


def test_measuring_a_failing_disk_is_refused(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure comes out, and nothing is left running."""
    threads = copying_threads()
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(TierFailure, match="ended after 0 bytes"):
        measure_link(disk_folder)
    assert copying_threads() == threads


def test_full_duplex_is_told_from_half() -> None:
    """Two copies that take as long as the longer of them are full duplex, as long as both are half."""
    for together, is_half in ((1.0, False), (2.0, True)):

        def seconds(*copies: tuple[Lane, int, int], together: float = together) -> float:
            if len(copies) == 2:
                return together
            return 1.0 if copies[0][2] == MIB else 1e-4

        rates = measured_rates(seconds, MIB, 3)
        assert rates.half_duplex is is_half
        assert rates.out_bytes_per_second == pytest.approx(MIB / (1.0 - 1e-4))
