"""How does a step run on a CPU? In the process's own memory, whose high water the kernel tells, and beside a file."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from weakref import WeakSet, finalize

import torch
from torch import Tensor

from outgrow.analysis.cost import Cost
from outgrow.errors import TierFailure
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.preparing.measure import CostCache, open_cost_cache, this_machine
from outgrow.frontends.preparing.overhead import unseen_overhead_bytes
from outgrow.frontends.preparing.settings import Settings, remark_beyond_memory
from outgrow.frontends.tracing.captured import Captured, Given
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Machine
from outgrow.planning.planned import Planned
from outgrow.remarks import remark
from outgrow.runtime import arena, freeing, process
from outgrow.runtime.exported import note_exports
from outgrow.runtime.heap import Heap
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.memory import give_back_mapped
from outgrow.runtime.numbered import numbers_of
from outgrow.runtime.process import machine_bytes
from outgrow.runtime.program import Program
from outgrow.runtime.recording import Recording
from outgrow.runtime.resting import bring_home, in_memory, is_exchangeable
from outgrow.runtime.spill import Spill

_LEFT_BYTES = 256 << 20
"""What is left of the machine's memory when weights come back to it."""
_STAYS = (
    "This machine has no memory for all of the model and its optimizer state. The rest stays on the disk, where it can "
    "be read and saved, slowly, until the model goes."
)


class OnCpu:
    """A CPU and the spill file of one step."""

    observes = True
    anchored = False
    slack_bytes = 12 << 20
    """The heap is never twice the same."""

    def __init__(self, settings: Settings) -> None:
        settings.require_disk()
        remark_beyond_memory(settings.budget_bytes, machine_bytes())
        note_exports()
        self.cache: CostCache = open_cost_cache()
        self._folder, self._budget_bytes = settings.folder, settings.budget_bytes
        finalize(self, arena.rest_at_most, 0).atexit = False
        self._touched: WeakSet[torch.UntypedStorage] = WeakSet()
        self._spill = Spill(OnDisk(settings.folder), settings.disk)

    def make_room(self, given: Given) -> None:
        """Do nothing: what has to be measured takes little."""

    def machine(self) -> Machine:
        return this_machine(self._folder)

    def known(self, captured: Captured, progress: Callable[[str, float], None]) -> Mapping[str, Cost]:  # noqa: ARG002
        return self.cache.known

    def may_leave(self, graph: Graph, name: str, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        return storage.nbytes() == graph.storages[name].size_bytes and is_exchangeable(storage)

    def fixed(self, given: Given) -> frozenset[str]:
        return frozenset(
            name
            for name, item in given.tensors.items()
            if name in given.shared or not self.may_leave(given.captured.graph, name, item)
        )

    def least_bytes(self) -> int:
        return freeing.least_bytes()

    def program(self, captured: Captured, planned: Planned) -> Program:  # noqa: ARG002
        return lower(planned.derived, costs=planned.costs)

    def needed_bytes(self, planned: Planned, program: Program) -> int:  # noqa: ARG002
        """There are no holes: the arena moves memory to where it is wanted."""
        return planned.plan.predicted.peak_bytes

    def install(self) -> None:
        arena.install()
        freeing.fix_mmap_threshold(freeing.MAPPED_BYTES)
        freeing.trim()

    def make_ready(self, program: Program, tensors: Mapping[str, Tensor], capacity_bytes: int) -> Spill | None:  # noqa: ARG002
        numbers_of(program)  # they take memory, which is there before somebody asks what is left
        arena.rest_at_most(self._budget_bytes)
        if not program.moves:
            bring_home(tensor.untyped_storage() for tensor in tensors.values())
            return None
        try:
            self._spill.reserve_for(program, tensors)
        except TierFailure:  # what another plan has left there may have the room
            bring_home(tensor.untyped_storage() for name, tensor in tensors.items() if name not in program.stowed)
            self._spill.reserve_for(program, tensors)
        return self._spill

    def settle_libraries(self) -> None:
        """What they keep of threads of a CPU is in the overhead."""

    def moment(self) -> float:
        return perf_counter()

    def memory(self, program: Program, *, is_timed: bool) -> Heap:  # noqa: ARG002 - the clock costs nothing
        return Heap()

    def baseline_bytes(self, tensors: list[Tensor]) -> int:
        freeing.clear_away()
        held = self.held_bytes(tensor.untyped_storage() for tensor in tensors)
        return max(0, self.process_bytes() - held)

    def process_bytes(self) -> int:
        return process.process_bytes()

    def high_water_bytes(self) -> int:
        return process.high_water_bytes()

    def reset_high_water(self) -> None:
        """What was read of the disk before counts no more."""
        give_back_mapped()
        process.reset_high_water()

    def held_at_most(self, program: Program, recording: Recording) -> int:  # noqa: ARG002
        """What rests when a run begins is the arena's, which serves the run with it, be it more than the run needs."""
        return max(recording.peak_bytes, recording.begun_bytes)

    def resting_bytes(self) -> int:
        return arena.resting_bytes()

    def keep_at_most(self, size_bytes: int) -> None:
        arena.rest_at_most(self._budget_bytes)
        arena.keep_at_most(size_bytes)

    def idle_bytes(self) -> int:
        return self.resting_bytes()

    def busy(self) -> AbstractContextManager[None]:
        """What rests is of the process, which takes of it what it needs."""
        return nullcontext()

    def failing(self) -> AbstractContextManager[None]:
        """A CPU that fails takes the process with it."""
        return nullcontext()

    def give_way(self, more_bytes: int, beside_bytes: int = 0, there: Iterable[torch.UntypedStorage] = ()) -> None:
        """Do nothing: what rests is of the process."""

    def held_bytes(self, storages: Iterable[torch.UntypedStorage]) -> int:
        """What was read of the disk is given back first. What nobody has touched yet, and pages of files, are not held.

        That is asked of each storage until it holds all of its bytes: one that is mapped, or without values, comes when
        it is first used.
        """
        give_back_mapped()
        there = list(in_memory(storages))
        asked = [item for item in there if item not in self._touched]
        found = process.present_bytes([(item.data_ptr(), item.nbytes()) for item in asked])
        lacking = sum(item.nbytes() - self._present_bytes(item, *own) for item, own in zip(asked, found, strict=True))
        return sum(item.nbytes() for item in there) - lacking

    def _present_bytes(self, storage: torch.UntypedStorage, present: int, other: int) -> int:
        """What a storage holds of its bytes, which is noted if it is all of them.

        `present` ones are anonymous, and `other` ones of files or shared memory. Of a file that others see as well, or
        shared memory, it holds what is there: no update makes that another's.
        """
        if other and not process.is_private(storage.data_ptr()):
            present += other
        if present == storage.nbytes():
            self._touched.add(storage)
        return present

    def unseen_bytes(self, graph: Graph, within: int) -> int:
        return unseen_overhead_bytes(graph, within)

    def trim(self) -> None:
        freeing.trim()

    def come_home(self, storages: Iterable[torch.UntypedStorage], *, is_own: bool) -> None:
        """What the machine has no room for stays where it is."""
        coming = (item for item in storages if not is_own or self._spill.has(item))
        if not bring_home(coming, lambda item: item.nbytes() + _LEFT_BYTES < process.available_bytes()):
            remark(_STAYS)

    def forget(self, program: Program) -> None:
        """A program that does not run takes nothing."""

    def close(self) -> None:
        self._spill.close()
        arena.rest_at_most(0)
