"""What was asked for? Strings become bytes and paths, and what cannot be used is refused at once."""

from dataclasses import dataclass, field
from pathlib import Path

from outgrow.planning.names import KERNELS, PLANNER_NAMES
from outgrow.remarks import remark
from outgrow.runtime.resting import Quota
from outgrow.runtime.tiers import DiskTier, offload_folder
from outgrow.units import format_bytes, parse_budget, parse_bytes


@dataclass(frozen=True, slots=True)
class Settings:
    """Bytes of memory, of disk, and of the host beside a device (None: all there is), a folder, and names."""

    budget_bytes: int
    disk_bytes: int | None
    folder: Path
    planner: str
    kernels: str = "eager"
    host_bytes: int | None = None
    disk: Quota = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Make what counts the bytes of disk of all steps that have these settings."""
        object.__setattr__(self, "disk", Quota(self.disk_bytes))

    @staticmethod
    def of(
        memory_budget: float | str,
        *,
        offload_dir: str | Path | None = None,
        disk_budget: float | str | None = None,
        planner: str = "search",
        kernels: str = "eager",
        host_budget: float | str | None = None,
    ) -> "Settings":
        """Return the settings, from arguments as `outgrow.compile` has them.

        Raises `InvalidQuantity` for a size that is none, `TypeError` and `TierFailure` for a folder that is none, and
        `ValueError` for an unknown planner or unknown kernels.
        """
        if planner not in PLANNER_NAMES:
            raise ValueError(f"planner {planner!r} is unknown. Choose one of: {', '.join(sorted(PLANNER_NAMES))}.")
        if kernels not in KERNELS:
            raise ValueError(f"kernels {kernels!r} are unknown. Choose one of: {', '.join(KERNELS)}.")
        budget_bytes = parse_budget(memory_budget)
        disk_bytes = None if disk_budget is None else parse_bytes(disk_budget, what="disk budget")
        host_bytes = None if host_budget is None else parse_bytes(host_budget, what="host budget")
        return Settings(budget_bytes, disk_bytes, offload_folder(offload_dir), planner, kernels, host_bytes)

    def require_disk(self) -> None:
        """Raise `TierFailure` if the folder cannot be used."""
        DiskTier(self.folder, 1 << 20).close()


def remark_beyond_memory(budget_bytes: int, memory_bytes: int, whose: str = "this machine") -> None:
    """Warn of a budget that a machine or a device does not have; it may be meant: then nothing is to move."""
    if budget_bytes > memory_bytes:
        found = format_bytes(memory_bytes)
        remark(f"The memory budget of {format_bytes(budget_bytes)} is more than {whose} has: {found}.")
