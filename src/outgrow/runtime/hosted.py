"""What does a step move through host memory? The scratch of its program, in one pool, by a link of its own.

Room is taken when a plan is made, so that a host that is full is found then, and not in the middle of a step.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from outgrow.errors import TierFailure
from outgrow.runtime.flights import StreamLink
from outgrow.runtime.pool import HostPool, Lock
from outgrow.runtime.resting import Extent
from outgrow.runtime.streams import Streams
from outgrow.units import format_bytes


@dataclass
class Hosted:
    """The host memory of one `Step` on a device; nothing is taken of it until a plan needs it."""

    device: torch.device
    streams: Streams
    lock: Lock
    limit_bytes: int | None = None
    pool: HostPool | None = None
    link: StreamLink | None = None
    scratch_offset: int = 0

    def reserve(self, scratch_bytes: int) -> None:
        """Have room for so much scratch. Raises `TierFailure` if the host budget or the host is too small."""
        if self.pool is not None and self.pool.size_bytes >= scratch_bytes:
            return
        if self.limit_bytes is not None and scratch_bytes > self.limit_bytes:
            raise TierFailure(
                f"The plan needs {format_bytes(scratch_bytes)} of host memory, and the host budget is "
                f"{format_bytes(self.limit_bytes)}. Raise the host budget or the memory budget."
            )
        self.close()
        self.pool = HostPool(scratch_bytes, self.lock)
        self.link = StreamLink(self.streams, self.device, self.pool)

    def arrange(
        self, storages: Mapping[str, torch.UntypedStorage], stowed: Collection[str], lasting: Mapping[str, int]
    ) -> Mapping[str, Extent]:
        """All that outlives the step stays on the device."""
        assert not stowed & storages.keys(), f"{', '.join(stowed)} were to stay on the device"
        assert not lasting, f"{', '.join(lasting)} were to stay on the device"
        return {}

    def close(self) -> None:
        """Give the host memory back, once nothing is in flight."""
        if self.link is not None:
            self.link.close()
        self.link = self.pool = None
