"""How many bytes does a step hold, and when? The one definition of "peak".

A step is a sequence of events in time; each adds or removes bytes of device memory: a storage comes into
being or dies, an op takes and returns workspace, a copy reserves or frees the bytes it moves. The memory at
a moment is the sum of all deltas up to it, and the peak is its maximum:

    memory(t) = sum of delta(e) for events e with seconds(e) <= t, in the order of the events
    peak      = max over t of memory(t)

Predicted, simulated and measured events go through the same two functions. A storage in flight counts in full
from the moment its bytes are reserved until the moment they are freed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple


class Lane(StrEnum):
    """What is busy during a span: the arithmetic, the link away from the device, or the link back."""

    COMPUTE = "compute"
    OUT = "out"
    IN = "in"


class Span(NamedTuple):
    """`label` (an op or a storage) occupies a lane from `begin` to `end`, in seconds from the step's start."""

    lane: Lane
    label: str
    begin: float
    end: float
    size_bytes: int = 0


class Event(NamedTuple):
    """At `seconds`, device memory changes by `device_bytes` and the next tier by `tier_bytes`."""

    seconds: float
    device_bytes: int
    tier_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened in one step, predicted, simulated or measured."""

    seconds: float
    spans: tuple[Span, ...]
    events: tuple[Event, ...]

    @property
    def peak_bytes(self) -> int:
        """The largest number of device bytes held at once."""
        return peak_bytes(event.device_bytes for event in self.events)

    @property
    def bytes_out(self) -> int:
        """Bytes that left the device."""
        return sum(span.size_bytes for span in self.spans if span.lane is Lane.OUT)

    @property
    def bytes_in(self) -> int:
        """Bytes that came back to the device."""
        return sum(span.size_bytes for span in self.spans if span.lane is Lane.IN)


def memory_over_time(events: tuple[Event, ...]) -> tuple[tuple[float, int, int], ...]:
    """Return (seconds, device bytes, tier bytes) after each event.

    >>> memory_over_time((Event(0.0, 4), Event(1.0, 2), Event(1.0, -4)))
    ((0.0, 4, 0), (1.0, 6, 0), (1.0, 2, 0))
    """
    device = tier = 0
    points: list[tuple[float, int, int]] = []
    for event in events:
        device += event.device_bytes
        tier += event.tier_bytes
        points.append((event.seconds, device, tier))
    return tuple(points)


def peak_bytes(changes: Iterable[int]) -> int:
    """Return the most bytes that are held at once, after the changes so far.

    >>> peak_bytes((4, 2, -4))
    6
    """
    return max(accumulate(changes), default=0)
