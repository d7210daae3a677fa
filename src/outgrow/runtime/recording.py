"""When did what happen in a run? Moments are noted while it goes on; a trace is made of them when somebody asks.

A moment is the host's clock, or a mark on a stream of a device whose work the host does not wait for. So to ask for a
trace may mean to wait for the end of the step; to run it does not.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeAlias

from outgrow.analysis.timeline import Event, Lane, Span, Trace, peak_bytes
from outgrow.runtime.foreknown import Foreknown
from outgrow.runtime.medium import Copy
from outgrow.runtime.streams import Mark

Moment: TypeAlias = float | Mark
"""Seconds of the host's clock, or a mark on the stream of operators."""

Ops: TypeAlias = list[tuple[str, Moment, Moment]]
"""Ops by name, with the moments around them, in order."""

Held: TypeAlias = list[tuple[Moment | None, int, int]]
"""Bytes of the device and of the next tier that were taken, or freed, in order; None where nobody asked when."""

_HOST_SHARE = 0.8
"""A host that takes a larger share of a run to give out its work keeps the device waiting, or is kept waiting by it."""


def seconds_between(begin: Moment, end: Moment) -> float:
    """Return the seconds from one moment to another of its kind."""
    if isinstance(begin, float | int):
        assert isinstance(end, float | int), "moments of one run are of one kind"
        return end - begin
    assert not isinstance(end, float | int), "moments of one run are of one kind"
    return end.seconds_since(begin)


@dataclass
class Retold:
    """What is noted of a run of which all is `foreknown` but the `moments` when its instructions were over.

    The user's storages took `there_bytes` of the device when it began. Where a run goes on after it has paused, it is
    noted when it `goes_on`, by position.
    """

    foreknown: Foreknown
    there_bytes: int
    moments: list[Moment] = field(default_factory=list[Moment])
    goes_on: dict[int, Moment] = field(default_factory=dict[int, Moment])

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were held at once."""
        return self.there_bytes + self.foreknown.peak_bytes

    @property
    def held(self) -> Held:
        """What any run of the program takes and frees."""
        changes = [(None, device, tier) for _, device, tier in self.foreknown.changes.tolist()]
        return [(None, self.there_bytes, 0), *changes]

    def told(self, begin: Moment) -> tuple[Ops, Held]:
        """Return the ops of the run, which began at `begin`, and what it took and freed."""
        ops, begun, free = Ops(), list[Moment](), begin
        for at, (name, over) in enumerate(zip(self.foreknown.names, self.moments, strict=True)):
            resumed = self.goes_on.get(at)
            free = free if resumed is None else resumed
            begun.append(self.moments[at - 1] if resumed is None else resumed)
            if name is not None:
                ops.append((name, free, over))
            if name is not None or at in self.foreknown.waits:
                free = over
        moments = [moment for pair in zip(begun, self.moments, strict=True) for moment in pair]
        changes = [(moments[at], device, tier) for at, device, tier in self.foreknown.changes.tolist()]
        return ops, [(begin, self.there_bytes, 0), *changes]


@dataclass
class Recording:
    """What is noted of one run that began at `begin`: ops, memory, copies; of one that did what is known, `retold`.

    The host gave out the work of the run from `host_begin` to `host_end`; for `behind` of the ops the device had other
    work left when it was given them. At the beginning `begun_bytes` were held or rested.
    """

    begin: Moment
    host_begin: float
    end: Moment | None = None
    host_end: float = math.inf
    ops: Ops = field(default_factory=Ops)
    memory: Held = field(default_factory=Held)
    copies: list[Copy] = field(default_factory=list[Copy])
    behind: int = 0
    begun_bytes: int = 0
    retold: Retold | None = None

    def give(self, last: Moment) -> None:
        """Note that an op is given to the device, which comes to it behind what it was given `last`."""
        if not isinstance(last, float | int) and not last.is_reached:
            self.behind += 1

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes that were held at once; nothing is waited for."""
        if self.retold is not None:
            return self.retold.peak_bytes
        return peak_bytes(device for _, device, _ in self.memory)

    @cached_property
    def held(self) -> Held:
        """What another run that does the same takes and frees."""
        if self.retold is not None:
            return self.retold.held
        return [(None, device, tier) for _, device, tier in self.memory]

    @cached_property
    def trace(self) -> Trace:
        """What happened; this waits for it, and is asked for after the end of the run."""
        ops, memory = (self.ops, self.memory) if self.retold is None else self.retold.told(self.begin)
        since = partial(seconds_between, self.begin)
        spans = [Span(Lane.COMPUTE, name, since(begin), since(end)) for name, begin, end in ops]
        copies = [copy.span(self.host_begin) for copy in self.copies]
        events = [Event(0.0 if at is None else since(at), device, tier) for at, device, tier in memory]
        return Trace(self.seconds, (*spans, *copies), tuple(events))

    @property
    def seconds(self) -> float:
        """How long the run took; this waits for its end, and for nothing else of it."""
        assert self.end is not None, "a run that took some time has ended"
        return seconds_between(self.begin, self.end)

    @property
    def waits_for_host(self) -> bool:
        """Whether the device had hardly anything left to do once the host had given out all: then it waited for it.

        Unless it had for most of the ops before: a host that is far ahead is made to wait, so it may end as late.
        """
        is_late = self.host_end - self.host_begin > _HOST_SHARE * self.seconds
        return is_late and 2 * self.behind <= len(self.ops)
