"""How do bytes of a device come to a disk? Through page-locked buffers of the host, a piece at a time.

Each direction has a thread (`runtime.links`), streams of its own beside those of the device, and two buffers: while a
piece moves between the device and one of them, the disk has the other.

    out    behind all work that operators were given when the copy was submitted; over once the disk has all of it
    in     over once the last piece was given to the stream, behind which operators go on that are called from then on

Copies are ordered by the same marks as those of `runtime.flights`, so what is said there of bytes holds here. At a
`wait` of the program the host waits for the disk, as the device would.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from outgrow.analysis.timeline import Lane, Span
from outgrow.errors import TierFailure
from outgrow.runtime.links import Link, Ticket
from outgrow.runtime.memory import bytes_on
from outgrow.runtime.pool import HostPool, LockPages
from outgrow.runtime.streams import Mark, Streams
from outgrow.runtime.tiers import DiskTier
from outgrow.units import MIB

_BUFFERS = 4
PIECE_BYTES = 8 * MIB
BUFFERS_BYTES = _BUFFERS * PIECE_BYTES
"""What the buffers of a link take, all together."""

_STACK_BYTES = 2 * MIB
"""Of threads in which the device's driver runs, which wants more than a copy to a disk."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A copy between the device and a disk."""

    ticket: Ticket
    streams: Streams
    arrived: dict[int, Mark]

    def wait(self) -> None:
        """Wait for the disk, and let operators that are called from now on run behind the copy."""
        self.ticket.wait()
        mark = self.arrived.pop(self.ticket.offset, None)
        if mark is not None:
            self.streams.wait(Lane.COMPUTE, mark)

    def span(self, origin: float) -> Span:
        """Return when the copy was made, in seconds from `origin` of the host's clock on."""
        return self.ticket.span(origin)


class StagedLink:
    """The two directions between memory of `device` and a file. Use it from one thread.

    `streams` are those of the device, and `own` other ones, for each direction.
    """

    def __init__(
        self, streams: Streams, own: tuple[Streams, Streams], device: torch.device, tier: DiskTier, lock: LockPages
    ) -> None:
        self._streams = streams
        self._stage = _Stage(own, device, tier, HostPool(device, lock))
        self._link = Link(self._stage, _STACK_BYTES)

    @property
    def failure(self) -> TierFailure | None:
        """Why the link copies no more; None while it does."""
        return self._link.failure

    def serving(self, *, is_timed: bool = True) -> AbstractContextManager[None]:
        """Copies are about to be submitted."""
        return self._link.serving(is_timed=is_timed)

    def submit(self, lane: Lane, storage: str, size: int, offset: int, address: int) -> Passing:
        """Queue a copy of `size` bytes between the device at `address` and the file at `offset`; return at once."""
        self._stage.behind[lane, offset] = self._streams.mark(Lane.COMPUTE, is_timed=False)
        return Passing(self._link.submit(lane, storage, size, offset, address), self._streams, self._stage.arrived)

    def settle(self) -> None:
        """Wait until no copy is in flight and no operator runs."""
        self._link.settle()
        self._stage.settle()
        self._streams.settle()

    def close(self) -> None:
        """Wait for what is being copied, and end the threads. May be called again."""
        self._link.close()
        self._stage.settle()


class _Stage:
    """The file as a link sees it: what is written to it comes from the device, by way of the buffers."""

    def __init__(self, own: tuple[Streams, Streams], device: torch.device, tier: DiskTier, buffers: HostPool) -> None:
        self.own = dict(zip((Lane.OUT, Lane.IN), own, strict=True))
        self._device, self._tier = device, tier
        first = buffers.seam_bytes
        buffers.grow(first + _BUFFERS * PIECE_BYTES)
        pieces = [buffers.bytes(first + at * PIECE_BYTES, PIECE_BYTES) for at in range(_BUFFERS)]
        self._buffers = {Lane.OUT: pieces[:2], Lane.IN: pieces[2:]}
        self._busy: dict[int, Mark] = {}
        self.behind: dict[tuple[Lane, int], Mark] = {}
        self.arrived: dict[int, Mark] = {}

    @property
    def folder(self) -> Path:
        return self._tier.folder

    def write(self, offset: int, address: int, size: int) -> None:
        """Copy bytes of the device at `address` to the file; in the thread of this direction."""
        if not size:
            return
        streams = self.own[Lane.OUT]
        streams.wait(Lane.OUT, self.behind.pop((Lane.OUT, offset)))
        coming = self._fetched(address, 0, size)
        for begin in range(0, size, PIECE_BYTES):
            buffer, mark = coming
            if begin + PIECE_BYTES < size:
                coming = self._fetched(address, begin + PIECE_BYTES, size)
            mark.wait()
            self._tier.write(offset + begin, buffer.data_ptr(), buffer.nbytes)

    def _fetched(self, address: int, begin: int, size: int) -> tuple[torch.Tensor, Mark]:
        """Give the stream the copy of a piece to a buffer that the disk has done with."""
        streams = self.own[Lane.OUT]
        length = min(PIECE_BYTES, size - begin)
        buffer = self._buffers[Lane.OUT][begin // PIECE_BYTES % 2][:length]
        streams.copy(Lane.OUT, buffer, bytes_on(self._device, address + begin, length))
        return buffer, streams.mark(Lane.OUT, is_timed=False)

    def read(self, offset: int, address: int, size: int) -> None:
        """Copy bytes of the file to the device at `address`; in the thread of this direction."""
        if not size:
            return
        streams = self.own[Lane.IN]
        streams.wait(Lane.IN, self.behind.pop((Lane.IN, offset)))
        for begin in range(0, size, PIECE_BYTES):
            length, at = min(PIECE_BYTES, size - begin), begin // PIECE_BYTES % 2
            buffer = self._buffers[Lane.IN][at][:length]
            if at in self._busy:
                self._busy.pop(at).wait()
            self._tier.read(offset + begin, buffer.data_ptr(), length)
            streams.copy(Lane.IN, bytes_on(self._device, address + begin, length), buffer)
            self._busy[at] = streams.mark(Lane.IN, is_timed=False)
        self.arrived[offset] = self._busy[at]

    def settle(self) -> None:
        """Let the host wait for the streams."""
        for streams in self.own.values():
            streams.settle()
