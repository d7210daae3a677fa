"""What is a tier made of? A file on a disk, or memory of the host beside a device, each with its own link.

A medium makes a new `tier`, with little room, and a `link` to a tier that it has made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch

from outgrow.analysis.sinking import ROOM_BYTES
from outgrow.runtime.below import FileBelow
from outgrow.runtime.flights import Flight, StreamLink
from outgrow.runtime.links import Link, Ticket
from outgrow.runtime.pool import HostPool, LockPages
from outgrow.runtime.staged import Passing, StagedLink
from outgrow.runtime.streams import Streams
from outgrow.runtime.tiers import DiskTier

Tier: TypeAlias = DiskTier | HostPool | FileBelow
AnyLink: TypeAlias = Link | StreamLink | StagedLink
Copy: TypeAlias = Ticket | Flight | Passing


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A file in `folder`."""

    folder: Path

    def tier(self) -> DiskTier:
        return DiskTier(self.folder, ROOM_BYTES)

    def link(self, tier: Tier) -> Link:
        assert isinstance(tier, DiskTier), "the tier is of this medium"
        return Link(tier)


@dataclass(frozen=True, slots=True)
class InHost:
    """Memory of the host beside a device, the same for all who reach that by streams of their own."""

    device: torch.device
    streams: Streams = field(compare=False)
    lock: LockPages = field(compare=False)

    def tier(self) -> HostPool:
        return HostPool(self.device, self.lock)

    def link(self, tier: Tier) -> StreamLink:
        assert isinstance(tier, HostPool), "the tier is of this medium"
        return StreamLink(self.streams, self.device, tier)


@dataclass(frozen=True, slots=True)
class BelowHost:
    """A file in `folder`, below memory of the host beside a device; `more` makes streams of that device."""

    folder: Path
    device: torch.device
    streams: Streams = field(compare=False)
    more: Callable[[], Streams] = field(compare=False)
    lock: LockPages = field(compare=False)

    def tier(self) -> FileBelow:
        return FileBelow(self.device, DiskTier(self.folder, ROOM_BYTES))

    def link(self, tier: Tier) -> StagedLink:
        assert isinstance(tier, FileBelow), "the tier is of this medium"
        return StagedLink(self.streams, (self.more(), self.more()), self.device, tier.file, self.lock)


Medium: TypeAlias = OnDisk | InHost | BelowHost
