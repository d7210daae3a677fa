"""On what does a step run? A device with its memory and rates, and the link to the next tier.

Rates are plain numbers with units in their names, published or measured; where each comes from stands in
the machine's file under `machines/`, or in the cache of measurements for the machine at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod


@dataclass(frozen=True, slots=True)
class Device:
    """What computes: sustained flop/s, memory bandwidth in bytes/s, and the fixed seconds of one op.

    Where `needs_workspace` is False, the library computes without memory besides operands and results. Where
    `places_results` is False, nobody can tell the allocator where a result shall lie. Where `reorders_gradients`, the
    library brings an operand of a convolution's gradients into another layout even if it is channels-last.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    seconds_per_op: float = 1e-5
    needs_workspace: bool = True
    places_results: bool = True
    reorders_gradients: bool = False


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What moves bytes between two tiers: bytes/s each way and seconds a transfer takes to start.

    On a `half_duplex` link the two directions share the time.
    """

    out_bytes_per_second: float
    in_bytes_per_second: float
    latency_seconds: float = 0.0
    half_duplex: bool = False

    def out_seconds(self, size_bytes: int) -> float:
        """Seconds to move `size_bytes` away from the device."""
        return self.latency_seconds + size_bytes / self.out_bytes_per_second

    def in_seconds(self, size_bytes: int) -> float:
        """Seconds to move `size_bytes` to the device."""
        return self.latency_seconds + size_bytes / self.in_bytes_per_second


@dataclass(frozen=True, slots=True)
class Peers:
    """Groups of devices that reach each other: their number, the bytes/s that each receives, and seconds to begin."""

    count: int
    bytes_per_second: float
    latency_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, the link to its next tier, and the bytes of that tier (None: as much as is asked).

    What the tier has no room for goes on through it, over a second link, to a tier `below`, if there is one. Where the
    device `reads_below`, what outlives the step may go there too.

    `peers` are the levels on which devices like this one reach each other, the slowest first: groups, which consist of
    groups of the next level, down to single devices. Where `shares_link`, all devices use the one link.
    """

    name: str
    device: Device
    link: LinkRates
    tier_bytes: int | None = None
    peers: tuple[Peers, ...] = ()
    shares_link: bool = False
    below: LinkRates | None = None
    reads_below: bool = False

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return prod(level.count for level in self.peers)

    def as_one_of(self, workers: int) -> "Machine":
        """Return the machine as seen by one of `workers` that use it at once: each has its part of a shared link."""
        if not self.shares_link or workers == 1:
            return self
        out_rate, in_rate = self.link.out_bytes_per_second, self.link.in_bytes_per_second
        rates = {"out_bytes_per_second": out_rate / workers, "in_bytes_per_second": in_rate / workers}
        return replace(self, link=replace(self.link, **rates))

    def exchange_seconds(self, worker: int, sent: Sequence[int], received: Sequence[int]) -> float:
        """Seconds in which `worker` sends and receives these bytes, to and from each worker.

        On each level it does both at once, and one level comes after the other.
        """
        moved = [[0, 0] for _ in self.peers]
        for other, sizes in enumerate(zip(sent, received, strict=True)):
            if other != worker:
                ours = moved[self._level(worker, other)]
                ours[:] = (before + size for before, size in zip(ours, sizes, strict=True))
        levels = zip(self.peers, moved, strict=True)
        return sum(level.latency_seconds + max(sizes) / level.bytes_per_second for level, sizes in levels if any(sizes))

    def waiting_bytes(self, count: int) -> float:
        """Return what each of the first `count` devices could receive while an exchange of all of them begins."""
        level = self.between(0, count - 1)
        return level.latency_seconds * level.bytes_per_second

    def between(self, one: int, other: int) -> Peers:
        """Return the level by which two workers reach each other."""
        return self.peers[self._level(one, other)]

    def _level(self, one: int, other: int) -> int:
        """Return the outermost level on which two workers are in different groups."""
        size = self.devices
        for at, level in enumerate(self.peers):
            size //= level.count
            if one // size != other // size:
                return at
        raise AssertionError(f"workers {one} and {other} are different")
