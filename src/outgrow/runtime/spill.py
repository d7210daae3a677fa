"""Where do a step's swapped storages rest? In one spill file that grows to what the largest plan needs.

Space is reserved when a plan is made, so that a full disk is found then and not in the middle of a step.
"""

from dataclasses import dataclass
from pathlib import Path

from outgrow.errors import TierFailure
from outgrow.runtime.links import Link
from outgrow.runtime.tiers import DiskTier
from outgrow.units import format_bytes


@dataclass
class Spill:
    """The spill file of one `Step` and the link to it; nothing exists on disk until a plan needs it."""

    folder: Path
    limit_bytes: int | None = None
    tier: DiskTier | None = None
    link: Link | None = None

    def reserve(self, size_bytes: int) -> Link | None:
        """Return a link to at least `size_bytes` of tier; None if nothing is needed.

        After a failure both are made anew.

        Raises `TierFailure` if the disk budget or the disk is too small.
        """
        if size_bytes == 0:
            return None
        if self.link is not None and self.link.failure is not None:
            self.close()
        if self.limit_bytes is not None and size_bytes > self.limit_bytes:
            raise TierFailure(
                f"The plan needs {format_bytes(size_bytes)} in {self.folder}, and the disk budget is "
                f"{format_bytes(self.limit_bytes)}. Raise the disk budget or the memory budget."
            )
        if self.tier is None or self.tier.capacity_bytes < size_bytes:
            self.close()
            self.tier = DiskTier(self.folder, size_bytes)
            self.link = Link(self.tier)
        return self.link

    def close(self) -> None:
        """Stop the link and give the disk space back."""
        if self.link is not None:
            self.link.close()
        if self.tier is not None:
            self.tier.close()
        self.link = self.tier = None
