"""A device for machines that have none: its memory is the host's, its streams are threads that take their time.

A stream does its work in order, some time after it was given it. Two streams are ordered by marks alone, so what a
program forgets to wait for goes wrong here as it does on a GPU, only more often: before each piece of work a stream may
sleep. `Streams` that forget waits, or do not sleep, are made of the same parts.
"""

import ctypes
import mmap
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from types import MappingProxyType
from weakref import finalize

import torch

from outgrow.analysis.timeline import Lane
from outgrow.errors import DeviceFull
from outgrow.runtime.pages import Pages
from outgrow.runtime.streams import Mark
from outgrow.units import format_bytes


@dataclass(eq=False)
class Point:
    """A mark on a thread: when it was reached, once it was."""

    reached: Event = field(default_factory=Event)
    seconds: float = 0.0

    @property
    def is_reached(self) -> bool:
        return self.reached.is_set()

    def wait(self) -> None:
        assert self.reached.wait(60), "a stream comes to its marks"

    def seconds_since(self, other: Mark) -> float:
        assert isinstance(other, Point), "marks of one device are of one kind"
        self.wait()
        other.wait()
        return self.seconds - other.seconds


class Threads:
    """Streams of which `lanes` are threads; operators of the others run at once, in the thread that calls them.

    `pauses` gives the seconds to sleep before a piece of work, `late` those of a lane that always sleeps. Waits whose
    number is in `forgotten`, counted from 1, are left out.
    """

    def __init__(
        self,
        lanes: Iterable[Lane] = (Lane.OUT, Lane.IN),
        pauses: Callable[[], float] = lambda: 0.0,
        forgotten: Iterable[int] = (),
        late: Mapping[Lane, float] = MappingProxyType({}),
    ) -> None:
        self.waits, self.pauses = 0, pauses
        self._forgotten = frozenset(forgotten)
        self._queues = {lane: SimpleQueue[Callable[[], object] | None]() for lane in lanes}
        for lane, queue in self._queues.items():
            own = partial(float, late[lane]) if lane in late else pauses
            Thread(target=_serve, args=(queue, own), daemon=True).start()
        finalize(self, _end, tuple(self._queues.values()))

    def give(self, lane: Lane, work: Callable[[], object]) -> None:
        """Give a lane a piece of work."""
        queue = self._queues.get(lane)
        if queue is None:
            work()
        else:
            queue.put(work)

    def mark(self, lane: Lane, *, is_timed: bool = True) -> Mark:  # noqa: ARG002 - the clock costs nothing
        point = Point()

        def reach() -> None:
            point.seconds = time.perf_counter()
            point.reached.set()

        self.give(lane, reach)
        return point

    def wait(self, lane: Lane, mark: Mark) -> None:
        self.waits += 1
        if self.waits not in self._forgotten:
            self.give(lane, mark.wait)

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor) -> None:
        def move() -> None:
            target.copy_(source)

        self.give(lane, move)

    def follow(self) -> None:
        """Operators run at once."""

    def settle(self) -> None:
        for lane in Lane:
            self.mark(lane).wait()


def _serve(queue: SimpleQueue[Callable[[], object] | None], pauses: Callable[[], float]) -> None:
    while (work := queue.get()) is not None:
        seconds = pauses()
        if seconds:
            time.sleep(seconds)
        work()
        del work


def _end(queues: tuple[SimpleQueue[Callable[[], object] | None], ...]) -> None:
    for queue in queues:
        queue.put(None)


def sleepy(seed: int, most_seconds: float = 2e-4) -> Callable[[], float]:
    """Return pauses, of which every other one is none."""
    chance = random.Random(seed)
    return lambda: chance.random() * most_seconds if chance.random() < 0.5 else 0.0


@dataclass(eq=False)
class StandIn:
    """A device whose memory is that of the host. It takes what is asked for as room: other tensors are not seen."""

    streams: Threads = field(default_factory=Threads)
    torch_device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    unseen_bytes: int = 0
    slack_bytes: int = 0
    memory_bytes: int = 1 << 60
    most_bytes: int | None = None
    locks: bool = True
    reads_pages: bool = False
    page_bytes: int = 1 << 14
    rooms: list[int] = field(default_factory=list[int])
    paged: list[Pages] = field(default_factory=list[Pages])
    cached: int = 0
    """What it keeps of what was given back to it."""
    high_water: int = 0
    refused: int = 0
    failed: str | None = None

    @property
    def name(self) -> str:
        """What an op allocates changes with the number of threads."""
        return f"stand-in-{torch.get_num_threads()}threads"

    def more_streams(self) -> Threads:
        return Threads(pauses=self.streams.pauses)

    def lock(self, address: int, size_bytes: int) -> Callable[[], None] | str:  # noqa: ARG002
        return (lambda: None) if self.locks else "it does not want to"

    def failure(self) -> str | None:
        return self.failed

    def taken_bytes(self) -> int:
        return self.cached + sum(self.rooms) + sum(pages.size_bytes for pages in self.paged)

    def cached_bytes(self) -> int:
        return self.cached

    def high_water_bytes(self) -> int:
        return max(self.high_water, self.taken_bytes())

    def reset_high_water(self) -> None:
        self.high_water = self.taken_bytes()

    def give_back(self) -> None:
        self.give_back_all()

    def give_back_all(self) -> None:
        self.streams.settle()
        self.cached = 0

    def keep_busy(self) -> None:
        """Operators run at once."""

    def settle_libraries(self) -> None:
        """Those of the host keep nothing."""

    def refusals(self) -> int:
        return self.refused

    def taken_by(self, sizes_bytes: Iterable[int]) -> int:
        return sum(sizes_bytes)

    def room(self, size_bytes: int) -> torch.Tensor:
        if self.most_bytes is not None and size_bytes > self.most_bytes:
            raise self.full(size_bytes)
        self.rooms.append(size_bytes)
        self.high_water = max(self.high_water, self.taken_bytes())
        room = torch.full((size_bytes + 512,), 0xFF, dtype=torch.uint8)  # NaN, for those who read what nobody wrote
        begin = -room.data_ptr() % 512
        finalize(room.untyped_storage(), self.rooms.remove, size_bytes).atexit = False
        return room[begin : begin + size_bytes]

    def pages(self) -> Pages | None:
        if not self.page_bytes:
            return None
        self.paged.append(Pages(HostMapper(self.page_bytes, self.most_bytes), self.torch_device))
        return self.paged[-1]

    def full(self, size_bytes: int) -> DeviceFull:
        return DeviceFull(f"{format_bytes(size_bytes)} are needed, and {format_bytes(self.most_bytes or 0)} are free.")


class HostMapper:
    """Pages of a file in memory of the host. They are full of NaN when they are taken, and seen at many addresses."""

    def __init__(self, page_bytes: int, most_bytes: int | None = None) -> None:
        self.page_bytes, self._most_bytes = page_bytes, most_bytes
        self._file = os.memfd_create("pages")
        self._free: list[int] = []
        self.taken = self._count = 0
        finalize(self, os.close, self._file)

    def take(self, number: int) -> list[int]:
        if self._most_bytes is not None and (self.taken + number) * self.page_bytes > self._most_bytes:
            raise MemoryError
        self.taken += number
        lacking = max(0, number - len(self._free))
        self._free += range(self._count, self._count + lacking)
        self._count += lacking
        pages = [self._free.pop() for _ in range(number)]
        for page in pages:
            os.pwrite(self._file, b"\xff" * self.page_bytes, page * self.page_bytes)
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        self._free += pages
        self.taken -= len(pages)

    def reserve(self, size_bytes: int) -> int:
        return _mapped(0, size_bytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

    def show(self, address: int, pages: Sequence[int]) -> None:
        size = self.page_bytes
        for at, page in enumerate(pages):
            _mapped(address + at * size, size, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED_FIXED, self._file, page * size)

    def free(self, address: int, size_bytes: int) -> None:
        assert _LIBC.munmap(address, size_bytes) == 0

    def settle(self) -> None:
        """What uses the pages is waited for when the device gives back."""


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_SHARED_FIXED = mmap.MAP_SHARED | 0x10


def _mapped(address: int, size: int, allowed: int, flags: int, file: int, offset: int) -> int:
    found = _LIBC.mmap(address, size, allowed, flags, file, offset)
    assert found not in (None, 2**64 - 1), os.strerror(ctypes.get_errno())
    return found
