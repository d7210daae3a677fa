"""On what does a step run? What is asked of it whatever it is, by a loop over whole steps as by one over parts.

OnCpu      the process's own memory under a budget, and a file as the next tier (`frontends.platforms.on_cpu`)
OnDevice   an arena of planned addresses on a device, and host memory as the next tier (`frontends.platforms.on_device`)
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from outgrow.analysis.cost import Cost
from outgrow.frontends.preparing.measure import CostCache
from outgrow.frontends.tracing.captured import Captured, Given
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Machine
from outgrow.planning.planned import Planned
from outgrow.runtime.device_memory import DeviceMemory
from outgrow.runtime.program import Program
from outgrow.runtime.recording import Moment, Recording
from outgrow.runtime.spill import Spill


class Platform(Protocol):
    """Where a step runs, and what it takes there."""

    observes: bool
    """Whether ops are observed while a step runs; else their costs are known before the first plan."""
    cache: CostCache
    anchored: bool
    """Whether a step has memory of its own, in which addresses may leave holes (`planning.problem`)."""
    slack_bytes: int
    """What it may take beyond the overhead that a run has shown."""

    def make_room(self, given: Given) -> None:
        """Make room to measure rates, and whatever is not known yet of a step."""
        ...

    def machine(self) -> Machine:
        """Return the rates, measured once. Raises `DeviceFull`."""
        ...

    def known(self, captured: Captured, progress: Callable[[str, float], None]) -> Mapping[str, Cost]:
        """Return what is known of the costs of ops, by key."""
        ...

    def may_leave(self, graph: Graph, name: str, tensor: Tensor) -> bool:
        """Whether the storage that a graph knows by this name can be moved without anybody noticing."""
        ...

    def fixed(self, given: Given) -> frozenset[str]:
        """Return the storages of a step that stay on the device although they outlive it."""
        ...

    def least_bytes(self) -> int:
        """Return the smallest size at which a storage that dies makes room for any other."""
        ...

    def program(self, captured: Captured, planned: Planned) -> Program:
        """Return the program of a plan. Raises `DeviceFull`."""
        ...

    def needed_bytes(self, planned: Planned, program: Program) -> int:
        """Return what a program needs of the capacity, with the holes between addresses."""
        ...

    def install(self) -> None:
        """Let memory be served as planned steps need it; done when a step runs first, and when a part is planned."""
        ...

    def make_ready(self, program: Program, tensors: Mapping[str, Tensor], capacity_bytes: int) -> Spill | None:
        """Take what a program needs that is about to run, within the capacity, and return the next tier.

        None if it moves nothing there. Raises `TierFailure` and `DeviceFull`.
        """
        ...

    def settle_libraries(self) -> None:
        """Let libraries take what they keep for this thread, if they have not yet: a run goes on in another one."""
        ...

    def moment(self) -> Moment:
        """Return the present moment."""
        ...

    def memory(self, program: Program, *, is_timed: bool) -> DeviceMemory:
        """Return the memory of one run of a program."""
        ...

    def baseline_bytes(self, tensors: list[Tensor]) -> int:
        """Return what the process takes beside tensors of a step, when what is not in use has been given back."""
        ...

    def process_bytes(self) -> int:
        """Return what the process takes now."""
        ...

    def high_water_bytes(self) -> int:
        """Return the most that it took since the mark was last reset."""
        ...

    def reset_high_water(self) -> None:
        """Let the mark begin again from what is taken now."""
        ...

    def held_at_most(self, program: Program, recording: Recording) -> int:
        """Return the most that a run of a program held of what was planned; what it took besides is overhead."""
        ...

    def resting_bytes(self) -> int:
        """Return how much of what the process takes is kept for the next step."""
        ...

    def keep_at_most(self, size_bytes: int) -> None:
        """Let at most so much be kept for the next step while no planned step runs."""
        ...

    def idle_bytes(self) -> int:
        """Return how much of what the process takes is kept for this step and for others that do not run now."""
        ...

    def busy(self) -> AbstractContextManager[None]:
        """Run a step in a block: nobody else takes what is kept for it meanwhile. Raises `DeviceLost`."""
        ...

    def failing(self) -> AbstractContextManager[None]:
        """Name the device where a block fails because it does: raises `DeviceLost`, and from then on at once."""
        ...

    def give_way(self, more_bytes: int, beside_bytes: int = 0, there: Iterable[torch.UntypedStorage] = ()) -> None:
        """Where there would be too little room, take what others keep that do not run now.

        There is to be room for so much more, and for tensors `beside` it, of which some are `there` already.
        """
        ...

    def held_bytes(self, storages: Iterable[torch.UntypedStorage]) -> int:
        """Return what storages take of the budget, each once."""
        ...

    def unseen_bytes(self, graph: Graph, within: int) -> int:
        """Return the overhead that is to be expected within a budget, before a run has shown it."""
        ...

    def trim(self) -> None:
        """Give back what is free."""
        ...

    def come_home(self, storages: Iterable[torch.UntypedStorage], *, is_own: bool) -> None:
        """Bring back what rests in a next tier between steps, be it that of another step unless `is_own`."""
        ...

    def forget(self, program: Program) -> None:
        """A program will not run again."""
        ...

    def close(self) -> None:
        """Give everything back that is taken; it is taken anew when a program runs."""
        ...
