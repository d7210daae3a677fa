"""On what does work queue up that the host does not wait for? On streams: each does its work in order.

    COMPUTE    what operators are asked for
    OUT, IN    copies away from the device, and back

    mark       a point behind everything that a stream was given so far
    wait       what a stream is given from now on runs behind a mark

Nothing else orders the work of two streams. A mark has to be made before it is waited for: waiting for one that no
stream was given yet would order nothing.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from outgrow.analysis.timeline import Lane


class Mark(Protocol):
    """A point in the work of a stream."""

    @property
    def is_reached(self) -> bool:
        """Whether the stream has come to it."""
        ...

    def wait(self) -> None:
        """Let the host wait until the stream has come to it."""
        ...

    def seconds_since(self, other: "Mark") -> float:
        """Return the seconds between another mark and this one; the host waits for both."""
        ...


class Streams(Protocol):
    """The streams of one device. Give them work from one thread at a time."""

    def mark(self, lane: Lane, *, is_timed: bool = True) -> Mark:
        """Return a mark behind everything that a lane was given so far; one without time costs less."""
        ...

    def wait(self, lane: Lane, mark: Mark) -> None:
        """Let what a lane is given from now on run behind a mark; the host goes on at once."""
        ...

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor) -> None:
        """Give a lane a copy of bytes; the host goes on at once if the host's side of it is page-locked."""
        ...

    def follow(self) -> None:
        """Let operators that are called from now on run behind those that were called on another stream of the user's.

        What a step leaves in its arena is of the stream that was current then, and the next step has the same arena.
        """
        ...

    def settle(self) -> None:
        """Let the host wait until all lanes have done their work."""
        ...


@dataclass(frozen=True, slots=True)
class _Event:
    """A mark on a CUDA stream."""

    event: torch.cuda.Event

    @property
    def is_reached(self) -> bool:
        return self.event.query()

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, other: Mark) -> float:
        assert isinstance(other, _Event), "marks of one device are of one kind"
        self.wait()
        other.wait()
        return other.event.elapsed_time(self.event) / 1e3


class CudaStreams:
    """The streams of a CUDA device: operators run on the one that is current when they are called.

    When another one is current than before, it waits for that: users who only read may call a step on two in turn.
    Its copies never allocate, and no operator runs on their streams: what the libraries keep for each stream
    (workspaces of matrix products) is there once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._copying = {lane: torch.cuda.Stream(device) for lane in (Lane.OUT, Lane.IN)}
        self._current = torch.cuda.current_stream(device)

    def mark(self, lane: Lane, *, is_timed: bool = True) -> Mark:
        event = torch.cuda.Event(enable_timing=is_timed)
        event.record(self._stream(lane))
        return _Event(event)

    def wait(self, lane: Lane, mark: Mark) -> None:
        assert isinstance(mark, _Event), "marks of one device are of one kind"
        self._stream(lane).wait_event(mark.event)

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor) -> None:
        if torch.cuda.current_device() != self._index:
            # the first leaves without a context on the device that was current, which takes hundreds of MB
            with torch.cuda.device(self._index), torch.cuda.stream(self._stream(lane)):
                target.copy_(source, non_blocking=True)
            return
        before = self._stream(Lane.COMPUTE)
        torch.cuda.set_stream(self._stream(lane))  # what the context above does, except what is known here
        try:
            target.copy_(source, non_blocking=True)
        finally:
            torch.cuda.set_stream(before)

    def follow(self) -> None:
        self._stream(Lane.COMPUTE)

    def settle(self) -> None:
        for lane in Lane:
            self._stream(lane).synchronize()

    def _stream(self, lane: Lane) -> torch.cuda.Stream:
        if lane is not Lane.COMPUTE:
            return self._copying[lane]
        if torch._C._cuda_getCurrentRawStream(self._index) != self._current.cuda_stream:  # noqa: SLF001 - quickly asked
            before, self._current = self._current, torch.cuda.current_stream(self._device)
            self._current.wait_stream(before)
        return self._current
