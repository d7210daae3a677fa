"""How do bytes move beside arithmetic on a device that has streams? Each copy is given to one of two streams.

    submit   give a copy to the stream of its direction, behind all work that operators were given so far
    wait     let what operators are given from now on run behind the copy; the host does not wait

Why no byte is read too early or overwritten too soon: a verified program waits for a copy before the memory on its
device side, or the place on its host side, is used for anything else (invariants 4 and 5 of `ir.verify`). That wait
puts the stream of operators behind the copy, and every later copy is behind that stream. So of two uses of one
byte by different streams the later one is always behind the earlier one, by way of the stream of operators, and within
one stream all is in order. Memory may be used again as soon as the program says so, on the host's side of time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from outgrow.analysis.timeline import Lane, Span
from outgrow.errors import TierFailure
from outgrow.ir.machine import LinkRates
from outgrow.runtime.links import measured_rates
from outgrow.runtime.memory import bytes_on
from outgrow.runtime.pool import HostPool, LockPages
from outgrow.runtime.streams import Mark, Streams
from outgrow.units import MIB

MEASURED_BYTES = 256 * MIB
"""What `measure_streams` copies where there is room."""
_MOST_KNOWN = 16_384


@dataclass(frozen=True, slots=True)
class Flight:
    """A copy of `size` bytes of a storage that was given to a stream; its seconds count from `origin`.

    It has times if its link was timed when the copy was submitted.
    """

    lane: Lane
    storage: str
    size: int
    streams: Streams
    origin: Mark
    begun: Mark
    ended: Mark

    def wait(self) -> None:
        """Let operators that are called from now on run behind the copy."""
        self.streams.wait(Lane.COMPUTE, self.ended)

    def span(self, origin: float) -> Span:  # noqa: ARG002 - the host's clock is not the device's
        """Return when the copy was made; the host waits for its end."""
        begin, end = (mark.seconds_since(self.origin) for mark in (self.begun, self.ended))
        return Span(self.lane, self.storage, begin, end, self.size)


class StreamLink:
    """The two directions between memory of `device` and a pool of host memory. Use it from one thread at a time."""

    failure: TierFailure | None = None
    """A stream does not fail by itself: if something goes wrong there, the next call of the device raises it."""

    def __init__(self, streams: Streams, device: torch.device, pool: HostPool) -> None:
        self._streams, self._device, self._pool = streams, device, pool
        self._is_timed = True
        self._origin = streams.mark(Lane.COMPUTE)
        self._here: dict[tuple[int, int], torch.Tensor] = {}
        self._there: dict[tuple[int, int], torch.Tensor] = {}

    @contextmanager
    def serving(self, *, is_timed: bool = True) -> Iterator[None]:
        """Copies are about to be submitted; if they are timed, their seconds count from now on."""
        self._is_timed, self._origin = is_timed, self._streams.mark(Lane.COMPUTE, is_timed=is_timed)
        yield

    def submit(self, lane: Lane, storage: str, size: int, offset: int, address: int) -> Flight:
        """Give a stream a copy of `size` bytes between the device at `address` and the pool at `offset`."""
        streams, is_timed = self._streams, self._is_timed
        here, there = self._sides(size, offset, address)
        source, target = (here, there) if lane is Lane.OUT else (there, here)
        streams.wait(lane, streams.mark(Lane.COMPUTE, is_timed=False))
        begun = streams.mark(lane) if is_timed else self._origin
        streams.copy(lane, target, source)
        return Flight(lane, storage, size, streams, self._origin, begun, streams.mark(lane, is_timed=is_timed))

    def _sides(self, size: int, offset: int, address: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the bytes of the device, and those of the pool, as tensors: a step has the same ones every time.

        They own nothing: a piece of the pool goes back when nobody has bytes of it, and its offsets do not come again.
        """
        if len(self._here) + len(self._there) > _MOST_KNOWN:
            self._here.clear()
            self._there.clear()
        here = self._here.get((address, size))
        if here is None:
            here = self._here[address, size] = bytes_on(self._device, address, size)
        there = self._there.get((offset, size))
        if there is None:
            place = self._pool.bytes(offset, size)
            there = self._there[offset, size] = bytes_on(place.device, place.data_ptr(), size)
        return here, there

    def settle(self) -> None:
        """Let the host wait until no copy is in flight and no operator runs."""
        self._streams.settle()

    def close(self) -> None:
        """Wait for what is in flight. May be called again."""
        self._streams.settle()
        self._here.clear()
        self._there.clear()


def measure_streams(
    streams: Streams, device: torch.device, lock: LockPages, size_bytes: int, repetitions: int = 3
) -> LinkRates:
    """Return what the link between a device and locked memory of the host does: medians of copies of `size_bytes`.

    It takes twice as much of both memories. Raises `TierFailure` where the host does not have it.
    """
    pool = HostPool(device, lock)
    first = pool.seam_bytes
    pool.grow(first + 2 * size_bytes)
    link = StreamLink(streams, device, pool)
    blocks = [torch.zeros(size_bytes, dtype=torch.uint8, device=device) for _ in range(2)]

    def seconds(*copies: tuple[Lane, int, int]) -> float:
        flights = [
            link.submit(lane, f"block {number}", size, first + number * size_bytes, blocks[number].data_ptr())
            for lane, number, size in copies
        ]
        return max(flight.ended.seconds_since(flights[0].begun) for flight in flights)

    try:
        return measured_rates(seconds, size_bytes, repetitions)
    finally:
        link.close()
