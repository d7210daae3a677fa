"""On what does a step run? A device with its memory and rates, and the link to the next tier.

Rates are plain numbers with units in their names, published or measured; where each comes from stands in
the machine's file under `machines/`, or in the cache of measurements for the machine at hand.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """What computes: sustained flop/s, memory bandwidth in bytes/s, and the fixed seconds of one op.

    Where `needs_workspace` is False, the library computes without memory besides operands and results. Where
    `places_results` is False, nobody can tell the allocator where a result shall lie.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    seconds_per_op: float = 1e-5
    needs_workspace: bool = True
    places_results: bool = True


@dataclass(frozen=True, slots=True)
class Link:
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
class Machine:
    """A device, the link to its next tier, and the bytes of that tier (None: as much as is asked)."""

    name: str
    device: Device
    link: Link
    tier_bytes: int | None = None
