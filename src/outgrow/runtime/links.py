"""How do bytes move while arithmetic goes on? A thread for each direction copies one storage after the other.

    submit   queue a copy between memory and tier, and return its ticket at once
    wait     block until the copy of a ticket has ended; raise what went wrong with it

Order. The copies of one direction run in the order of their submission; the two directions run side by side
and know nothing of each other. So a copy of a storage is submitted only after its copies in the other
direction have been waited for, as every verified program does (invariants 4 and 5 of `ir.verify`: what comes
back was dropped, and what is dropped was waited for). The memory of a copy stays where it is until its
ticket, or the link, was waited for or settled.

Failure. The first copy that fails ends the link: what is queued behind it or submitted later is refused with
the same reason, without a touch of the disk.

Switch interval. The threads give up the interpreter's lock during a block of 16 MiB and need it for
microseconds between two blocks. A main thread in pure Python hands it over after the switch interval of the
interpreter, 5 ms by default: as long as the disk takes for a block. So whoever submits copies shortens the interval
(`handing_over`), but only meanwhile: it belongs to the user's process, and matters only where a thread waits for the
lock.
"""

import os
import sys
from _thread import LockType
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from threading import Lock, Thread, stack_size
from time import perf_counter
from traceback import clear_frames
from typing import Protocol
from weakref import WeakSet, finalize

from outgrow.analysis.sinking import ROOM_BYTES
from outgrow.analysis.timeline import Lane, Span
from outgrow.errors import TierFailure
from outgrow.ir.machine import LinkRates
from outgrow.runtime.memory import Block, bytes_at
from outgrow.runtime.tiers import DiskTier
from outgrow.units import MIB

_JOIN_SECONDS = 30.0
_STACK_BYTES = 512 << 10
_SWITCH_SECONDS = 1e-4
MEASURED_BYTES = 32 * MIB
"""What `measure_link` copies."""

_Transfer = Callable[[int, int, int], None]
"""`Store.write` or `.read`: offset, address, size."""


class Store(Protocol):
    """What a link copies to and from: a `DiskTier`, or the way to one."""

    @property
    def folder(self) -> Path:
        """Where the file is."""
        ...

    def write(self, offset: int, address: int, size: int) -> None:
        """Copy `size` bytes at `address` to `offset`."""
        ...

    def read(self, offset: int, address: int, size: int) -> None:
        """Copy `size` bytes from `offset` to `address`."""
        ...


def _held_lock() -> LockType:
    """A lock that is released when a copy ends; making one takes a tenth of the time of an event."""
    lock = Lock()
    lock.acquire()
    return lock


@dataclass(eq=False, slots=True)
class Ticket:
    """A copy of `size` bytes of a storage. `begin` and `end` tell when, by `perf_counter`, once it ended."""

    lane: Lane
    storage: str
    size: int
    offset: int
    address: int
    begin: float = 0.0
    end: float = 0.0
    failure: TierFailure | None = None
    _under_way: LockType = field(default_factory=_held_lock)

    @property
    def has_ended(self) -> bool:
        """Whether the copy is over, well or not."""
        return not self._under_way.locked()

    def wait(self) -> None:
        """Wait for the end of the copy. Raises `TierFailure`, at every call, if it failed or was refused."""
        self.settle()
        if self.failure is not None:
            # A new exception each time: the old one would collect and keep alive the frames of all who wait.
            raise TierFailure(str(self.failure)) from self.failure

    def settle(self) -> None:
        """Wait for the end of the copy, whatever came of it."""
        with self._under_way:
            return

    def run(self, transfer: _Transfer) -> None:
        """Copy, in the thread of the lane, and keep what goes wrong for `wait`."""
        self.begin = perf_counter()
        try:
            transfer(self.offset, self.address, self.size)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that waits
            clear_frames(error.__traceback__)  # they would keep the spill file open
            self.failure = TierFailure(f"{self.storage} was not copied {self.lane}: {error or repr(error)}")
            self.failure.__cause__ = error
        self.end = perf_counter()

    def refuse(self, reason: TierFailure) -> None:
        """End the copy before it began."""
        self.failure = TierFailure(f"{self.storage} is not copied {self.lane} any more. {reason}")
        self.failure.__cause__ = reason
        self.begin = self.end = perf_counter()

    def span(self, origin: float) -> Span:
        """Return when the copy was made, in seconds from `origin` on."""
        return Span(self.lane, self.storage, self.begin - origin, self.end - origin, self.size)

    def finish(self) -> None:
        """Let those who wait go on."""
        self._under_way.release()


@dataclass
class _Health:
    """What both directions know of their link: why it copies no more."""

    failure: TierFailure | None = None


class Link:
    """The two directions between memory and a file. Submit and close from one thread.

    Its threads, which have stacks of `stack_bytes`, end with `close`, or when nobody refers to the link any more.
    """

    def __init__(self, tier: Store, stack_bytes: int = _STACK_BYTES) -> None:
        self._folder = tier.folder
        self._health = _Health()
        self._is_closed = False
        self._last: dict[str, Ticket] = {}
        self._queues: dict[Lane, SimpleQueue[Ticket | None]] = {}
        self._threads: list[Thread] = []
        for lane, transfer in ((Lane.OUT, tier.write), (Lane.IN, tier.read)):
            queue = self._queues[lane] = SimpleQueue[Ticket | None]()
            work = (queue, transfer, self._health)
            self._threads.append(Thread(target=_serve, args=work, name=f"outgrow-{lane}", daemon=True))
        self._end_threads = finalize(self, _end, tuple(self._queues.values()))
        _start(self._threads, stack_bytes)
        _links.add(self)

    @property
    def failure(self) -> TierFailure | None:
        """Why the link copies no more; None while it does."""
        return self._health.failure

    def submit(self, lane: Lane, storage: str, size: int, offset: int, address: int) -> Ticket:
        """Queue a copy of `size` bytes between memory at `address` and the tier at `offset`; return at once.

        A link that failed or is closed does not raise here, but gives a ticket that does.
        """
        last = self._last.get(storage)
        assert last is None or last.lane is lane or last.has_ended, (
            f"{storage} is to be copied {lane} while it is copied {last.lane}: wait for it first"
        )
        ticket = Ticket(lane, storage, size, offset, address)
        if self._is_closed:
            assert self._health.failure is not None, "a closed link has a reason to refuse"
            ticket.refuse(self._health.failure)
            ticket.finish()
        else:
            self._queues[lane].put(ticket)
            self._last[storage] = ticket
        return ticket

    def serving(self, *, is_timed: bool = True) -> AbstractContextManager[None]:  # noqa: ARG002 - a clock costs nothing
        """Copies are about to be submitted from a thread that holds the interpreter's lock."""
        return handing_over()

    def orphan(self) -> None:
        """Say that this process was forked off: its threads are those of another one."""
        self._health.failure = TierFailure("The link belongs to the process from which this one was forked.")
        self._is_closed = True

    def settle(self) -> None:
        """Wait until no copy is in flight, whatever came of them."""
        for ticket in [self.submit(lane, f"nothing {lane}", 0, 0, 0) for lane in self._queues]:
            ticket.settle()

    def close(self) -> None:
        """Refuse what is queued, wait for what is being copied, and end the threads. May be called again.

        A disk that hangs is waited for no longer than `_JOIN_SECONDS`, by `settle` without a limit.
        """
        if self._health.failure is None:
            self._health.failure = TierFailure(f"The link to the spill file in {self._folder} was closed.")
        self._is_closed = True
        self._end_threads()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)


_links: WeakSet[Link] = WeakSet()


def _orphaned() -> None:
    for link in _links:
        link.orphan()


os.register_at_fork(after_in_child=_orphaned)


def _start(threads: list[Thread], stack_bytes: int) -> None:
    """Start threads with small stacks: RLIMIT_DATA counts a stack whole, by default 8 MiB, though nobody touches it."""
    found = stack_size(stack_bytes)
    try:
        for thread in threads:
            thread.start()
    finally:
        stack_size(found)


def _serve(queue: SimpleQueue[Ticket | None], transfer: _Transfer, health: _Health) -> None:
    """Copy what is queued until None is. It does not know its `Link`, so that one can be forgotten."""
    while (ticket := queue.get()) is not None:
        if health.failure is None:
            ticket.run(transfer)
            health.failure = health.failure or ticket.failure
        else:
            ticket.refuse(health.failure)
        ticket.finish()
        del ticket


def _end(queues: tuple[SimpleQueue[Ticket | None], ...]) -> None:
    for queue in queues:
        queue.put(None)


# ---- The interpreter's switch interval


@dataclass
class _Switching:
    """How many submit copies now, and which switch interval there was before the first."""

    users: int = 0
    found_seconds: float = 0.0
    set_seconds: float = 0.0
    lock: Lock = field(default_factory=Lock)


_switching = _Switching()


@contextmanager
def handing_over() -> Iterator[None]:
    """Let threads get the interpreter's lock quickly; afterwards the interval is as before, unless someone set it."""
    state = _switching
    with state.lock:
        state.users += 1
        if state.users == 1:
            state.found_seconds = sys.getswitchinterval()
            sys.setswitchinterval(min(state.found_seconds, _SWITCH_SECONDS))
            state.set_seconds = sys.getswitchinterval()
    try:
        yield
    finally:
        with state.lock:
            state.users -= 1
            if state.users == 0 and sys.getswitchinterval() == state.set_seconds:
                sys.setswitchinterval(state.found_seconds)


# ---- Rates


def measure_link(folder: Path, repetitions: int = 3) -> LinkRates:
    """Return what the link to a spill file in `folder` does: medians of copies of 32 MiB and of one page.

    The link is half duplex if copies in both directions at once take about as long as one after the other.
    This takes a fraction of a second, 64 MiB of memory and as much of disk. Raises `TierFailure` as
    `DiskTier` does.
    """
    with DiskTier(folder, 2 * MEASURED_BYTES) as tier:
        blocks = _filled_block(), _filled_block()
        link = Link(tier)

        def seconds(*copies: tuple[Lane, int, int]) -> float:
            tickets = [
                link.submit(lane, f"block {number}", size, number * MEASURED_BYTES, blocks[number].address)
                for lane, number, size in copies
            ]
            for ticket in tickets:
                ticket.wait()
            return max(ticket.end for ticket in tickets) - min(ticket.begin for ticket in tickets)

        try:
            with handing_over():
                return measured_rates(seconds, MEASURED_BYTES, repetitions)
        finally:
            link.close()


def measured_rates(seconds: Callable[..., float], size: int, repetitions: int) -> LinkRates:
    """Return the rates of a link; `seconds` makes copies at once, each (lane, block 0 or 1, bytes), and times them."""
    for block in (0, 1):  # the first write of reserved space is slower than those that follow
        seconds((Lane.OUT, block, size))
    repeated = range(repetitions)
    latency = median(seconds((lane, 0, ROOM_BYTES)) for _ in repeated for lane in (Lane.OUT, Lane.IN))
    out = median(seconds((Lane.OUT, 0, size)) for _ in repeated)
    back = median(seconds((Lane.IN, 0, size)) for _ in repeated)
    together = median(seconds((Lane.OUT, 0, size), (Lane.IN, 1, size)) for _ in repeated)
    return LinkRates(
        out_bytes_per_second=size / max(out - latency, out / 2),
        in_bytes_per_second=size / max(back - latency, back / 2),
        latency_seconds=latency,
        half_duplex=together > (max(out, back) + (out + back)) / 2,
    )


def _filled_block() -> Block:
    """Return a block of bytes to measure with, which a disk cannot make smaller."""
    block = Block(MEASURED_BYTES)
    block.commit(0, MEASURED_BYTES)
    noise, view = os.urandom(MIB), bytes_at(block.address, MEASURED_BYTES)
    for begin in range(0, MEASURED_BYTES, MIB):
        view[begin : begin + MIB] = noise
    return block
