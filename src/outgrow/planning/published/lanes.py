"""Which transfers can be hidden? Slots on the lanes of a link, booked one after another on the time of the arithmetic.

A lane carries one transfer at a time. A copy out takes the earliest free slot after the op that it follows, a copy
back the latest one that ends before the op that needs it; where these would overlap, the earliest after the copy out,
and the op is late by what lies beyond its begin. On a half-duplex link both directions share one lane.
"""

from bisect import insort
from dataclasses import dataclass, field

from outgrow.analysis.liveness import Gap
from outgrow.ir.machine import LinkRates
from outgrow.planning.published.profile import Profile


@dataclass(frozen=True)
class _Lane:
    """Transfers booked so far, as (begin, end), ascending."""

    busy: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def earliest(self, after: float, seconds: float) -> float:
        begin = after
        for busy_begin, busy_end in self.busy:
            if begin + seconds <= busy_begin:
                break
            begin = max(begin, busy_end)
        return begin

    def latest(self, until: float, seconds: float) -> float:
        end = until
        for busy_begin, busy_end in reversed(self.busy):
            if busy_end <= end - seconds:
                break
            end = min(end, busy_begin)
        return end - seconds


@dataclass(frozen=True, slots=True)
class Booking:
    """When a gap's copies begin, the seconds each takes, and by how much the op at its end is late."""

    out_begin: float
    out_seconds: float
    back_begin: float
    back_seconds: float
    late_seconds: float


class Lanes:
    """Both directions of a link, and what is booked on them for the gaps of one profile."""

    def __init__(self, profile: Profile, link: LinkRates) -> None:
        self._link, self._elapsed = link, profile.elapsed
        self._out = _Lane()
        self._back = self._out if link.half_duplex else _Lane()
        self._copied: set[str] = set()

    def free_time(self, gap: Gap) -> float:
        """Return the seconds for which the storage would be away, were the link idle; below 0: it cannot be hidden."""
        rest = float(self._elapsed[gap.end] - self._elapsed[gap.begin + 1])
        return rest - self._link.out_seconds(gap.size_bytes) - self._link.in_seconds(gap.size_bytes)

    def offer(self, gap: Gap) -> Booking:
        """Return the slots that a gap would get now. A version that an earlier swap has copied needs no copy out."""
        is_copied = not gap.dirty and gap.storage in self._copied
        out_seconds = 0.0 if is_copied else self._link.out_seconds(gap.size_bytes)
        back_seconds = self._link.in_seconds(gap.size_bytes)
        use = float(self._elapsed[gap.end])
        out_begin = self._out.earliest(float(self._elapsed[gap.begin + 1]), out_seconds)
        back_begin = self._back.latest(use, back_seconds)
        if back_begin < out_begin + out_seconds:
            back_begin = self._back.earliest(out_begin + out_seconds, back_seconds)
        late_seconds = max(0.0, back_begin + back_seconds - use)
        return Booking(out_begin, out_seconds, back_begin, back_seconds, late_seconds)

    def book(self, gap: Gap) -> Booking:
        """Take the slots that the gap is offered."""
        booking = self.offer(gap)
        if booking.out_seconds:
            insort(self._out.busy, (booking.out_begin, booking.out_begin + booking.out_seconds))
        insort(self._back.busy, (booking.back_begin, booking.back_begin + booking.back_seconds))
        self._copied.add(gap.storage)
        return booking
