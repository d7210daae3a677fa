"""On what does work queue up that the host does not wait for? On streams: each does its work in order.

    COMPUTE    what operators are asked for
    OUT, IN    copies away from the device, and back

    mark       a point behind everything that a stream was given so far
    wait       what a stream is given from now on runs behind a mark

Nothing else orders the work of two streams. A mark is made before it is waited for: to wait for one that a stream has
not been given yet would order nothing.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from outgrow.analysis.timeline import Lane


class Mark(Protocol):
    """A point in the work of a stream."""

    def wait(self) -> None:
        """Let the host wait until the stream has come to it."""
        ...

    def seconds_since(self, other: "Mark") -> float:
        """Return the seconds between another mark and this one; the host waits for both."""
        ...


class Streams(Protocol):
    """The streams of one device. Give them work from one thread."""

    def mark(self, lane: Lane, *, is_timed: bool = True) -> Mark:
        """Return a mark behind everything that a lane was given so far; one without time costs less."""
        ...

    def wait(self, lane: Lane, mark: Mark) -> None:
        """Let what a lane is given from now on run behind a mark; the host goes on at once."""
        ...

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor) -> None:
        """Give a lane a copy of bytes; the host goes on at once if the host's side of it is page-locked."""
        ...

    def settle(self) -> None:
        """Let the host wait until all lanes have done their work."""
        ...

    def begin(self) -> None:
        """From now on operators are called on the stream that is current here."""
        ...


@dataclass(frozen=True, slots=True)
class _Event:
    """A mark on a CUDA stream."""

    event: torch.cuda.Event

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, other: Mark) -> float:
        assert isinstance(other, _Event), "marks of one device are of one kind"
        self.wait()
        other.wait()
        return other.event.elapsed_time(self.event) / 1e3


class CudaStreams:
    """The streams of a CUDA device: operators run on the one that is current when a run of them begins.

    Its copies never allocate, and no operator runs on their streams: what the libraries keep for each stream
    (workspaces of matrix products) is there once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = {lane: torch.cuda.Stream(device) for lane in (Lane.OUT, Lane.IN)}
        self.begin()

    def begin(self) -> None:
        self._streams[Lane.COMPUTE] = torch.cuda.current_stream(self._device)

    def mark(self, lane: Lane, *, is_timed: bool = True) -> Mark:
        event = torch.cuda.Event(enable_timing=is_timed)
        event.record(self._streams[lane])
        return _Event(event)

    def wait(self, lane: Lane, mark: Mark) -> None:
        assert isinstance(mark, _Event), "marks of one device are of one kind"
        self._streams[lane].wait_event(mark.event)

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor) -> None:
        torch.cuda.set_stream(self._streams[lane])  # a context of torch's would ask for what is known
        try:
            target.copy_(source, non_blocking=True)
        finally:
            torch.cuda.set_stream(self._streams[Lane.COMPUTE])

    def settle(self) -> None:
        for lane in Lane:
            self._streams[lane].synchronize()
