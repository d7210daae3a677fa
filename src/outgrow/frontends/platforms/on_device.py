"""How does a step run on a device beside the host? In an arena of planned addresses, and beside a pool of host memory.

Ops are rehearsed before the first plan (`frontends.preparing.rehearsal`). What is on the device between steps is in
memory of torch's own allocator; all else lies in the arena (`planning.addresses`), which is as large as the plan needs.
Weights and optimizer state that rest in memory of the host between steps are tensors of the device all the same
(`runtime.resting`): the device reaches locked memory of the host, slowly.

Steps of one device have an arena each, such as one that trains and one that evaluates. What does not run makes room for
what does: it takes its arena anew when it runs again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import RLock
from weakref import WeakSet

import torch
from torch import Tensor

from outgrow.analysis.cost import Cost
from outgrow.analysis.sinking import sunk
from outgrow.errors import DeviceFull, DeviceLost, InvalidQuantity, OutgrowError
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.platforms.beside_device import BesideDevice, has_file, least_host_bytes
from outgrow.frontends.platforms.on_cpu import OnCpu
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.preparing.measure import CostCache, machine_of, open_cost_cache
from outgrow.frontends.preparing.rehearsal import Rehearsal, Rehearsed
from outgrow.frontends.preparing.settings import Settings, remark_beyond_memory
from outgrow.frontends.tracing.captured import Captured, Given
from outgrow.frontends.user.training.devices import CPU
from outgrow.ir.graph import Graph, Op, Role
from outgrow.ir.machine import Machine
from outgrow.plan import Addresses
from outgrow.planning.addresses.addresses import ALIGNMENT_BYTES, addresses_of, outside
from outgrow.planning.planned import Planned
from outgrow.remarks import remark
from outgrow.runtime import arena
from outgrow.runtime.device import BesideHost, Cuda, given_room
from outgrow.runtime.directed import install
from outgrow.runtime.memory import storage_on
from outgrow.runtime.pages import Unread
from outgrow.runtime.planned_arena import Arena, PlannedMemory
from outgrow.runtime.program import Aim, Program
from outgrow.runtime.recording import Moment, Recording
from outgrow.runtime.resting import bring_home, is_exchangeable, resident_bytes
from outgrow.runtime.spill import Spill
from outgrow.units import format_bytes

_SHARE_MEASURED = 1 / 4
"""Measuring rates takes at most this share of the budget."""
_STAYS = (
    "The device has no room for all of the model and its optimizer state. The rest stays in memory of the host, where "
    "the device reads it, slowly. Save a checkpoint, or move the model to the host."
)
_READS = "aten._local_scalar_dense.default"
_WAITS = (
    "The step reads {} numbers from the GPU, and the host waits for each in every step. Return a loss as a tensor, and "
    "read it (.item()) where you print it. If they are the counters of an optimizer, which are there by "
    "torch.set_default_device, make it with capturable=True; if a checkpoint has brought them there, load it with "
    "map_location='cpu'."
)
_FULL = (
    "The device has too little memory left to get the step ready: {} Nothing has been changed. Lower the memory "
    "budget, or end what else uses the device."
)
_LOST = (
    "{} has failed ({}), and does nothing any more for this process, so what was on it is lost. Start another process, "
    "from the last checkpoint. If the step is at fault, as by an index that is out of range, the environment variable "
    "CUDA_LAUNCH_BLOCKING=1 lets its failure name the operator."
)
_known: "WeakSet[OnDevice]" = WeakSet()
"""What whole steps and parts run on.

Steps of one process share the memory of a device but know nothing of each other: one that lacks room finds here what
idle ones would give back.
"""
_idle_lock = RLock()
"""Held while idle platforms are looked for or closed: none of them begins a run meanwhile."""
_TRIED_AT_ONCE = 2
"""Trying an op takes up to twice the bytes that it touches: of two runs both hold their results."""


def platform_of(settings: Settings, home: torch.device, device: BesideHost | None = None) -> Platform:
    """Return what a step runs on: a device that is given, or the one that is its home.

    Raises `InvalidQuantity` for a budget of something that is not there, or that nobody counts.
    """
    if device is None:
        if home == CPU or not torch.cuda.is_available():
            if settings.host_bytes is not None:
                raise InvalidQuantity(
                    "host_budget is for a model on a GPU. On the CPU memory_budget limits what is taken."
                )
            return OnCpu(settings)
        device = Cuda(home)
        device.require_counted()
    if settings.disk_bytes is not None and not has_file(settings):
        raise InvalidQuantity(
            "disk_budget is for a model on the CPU, or beside a host_budget (of outgrow.compile) above "
            f"{format_bytes(least_host_bytes())}: without one, a model on a GPU has no file."
        )
    return OnDevice(settings, device)


@contextmanager
def _with_room() -> Iterator[None]:
    """Get a step ready. Raises `DeviceFull` where torch finds no memory for what that takes."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceFull(_FULL.format(error)) from error


class OnDevice:
    """A device, the arena and the host memory of one step."""

    observes = False
    anchored = True

    def __init__(self, settings: Settings, device: BesideHost) -> None:
        remark_beyond_memory(settings.budget_bytes, device.memory_bytes, str(device.torch_device))
        self.cache: CostCache = open_cost_cache(device.name)
        self._device, self._budget_bytes = device, settings.budget_bytes
        self.slack_bytes = device.slack_bytes
        directed = install(device.torch_device)
        self._rehearsal = Rehearsal(device, directed)
        self._arena = Arena(device, directed, device.pages())
        self._beside = BesideDevice(device, settings)
        self._nothing = Unread(device.pages(), device.torch_device)
        self._baseline_bytes: int | None = None
        self._failure: str | None = None
        self._is_busy = False
        with _idle_lock:
            _known.add(self)

    @contextmanager
    def busy(self) -> Iterator[None]:
        with self.failing():
            with _idle_lock:
                self._is_busy = True
            try:
                yield
            finally:
                self._is_busy = False

    @contextmanager
    def failing(self) -> Iterator[None]:
        if self._failure is not None:
            raise DeviceLost(_LOST.format(self._device.torch_device, self._failure))
        try:
            yield
        except (RuntimeError, OutgrowError) as error:
            self._failure = self._device.failure()
            if self._failure is None:
                raise
            raise DeviceLost(_LOST.format(self._device.torch_device, self._failure)) from error

    def make_room(self, given: Given) -> None:
        """Give arenas back; if there is still little room, let all state rest until the first step.

        The step brings back what its plan wants on the device.
        """
        graph = given.captured.graph
        if self._rehearsal.knows(graph):
            return
        self._close_arenas()
        tried = max((sum(graph.storages[name].size_bytes for name in names) for names in graph.touched_at), default=0)
        taken_bytes = self._device.taken_bytes() - (self._baseline_bytes or 0)
        if taken_bytes + _TRIED_AT_ONCE * tried <= self._budget_bytes:
            return
        staying = self.fixed(given)
        self._beside.rest([tensor for name, tensor in given.tensors.items() if name not in staying])
        self._device.give_back()

    @_with_room()
    def machine(self) -> Machine:
        return self._beside.known_to(machine_of(self._device, int(self._budget_bytes * _SHARE_MEASURED)))

    def known(self, captured: Captured, progress: Callable[[str, float], None]) -> Mapping[str, Cost]:
        def tell(fraction: float) -> None:
            progress("rehearse", fraction)

        reads = _reads(captured) if self._device.torch_device != CPU else 0
        if reads:
            remark(_WAITS.format(reads))
        return self._rehearsal.costs(captured.graph, captured.elsewhere, tell) | self.cache.known

    def may_leave(self, graph: Graph, name: str, tensor: Tensor) -> bool:
        """What comes from the caller stays where it is: it is the caller's when the step ends."""
        storage, known = tensor.untyped_storage(), graph.storages[name]
        is_here = tensor.device == self._device.torch_device and storage.nbytes() == known.size_bytes
        return is_here and known.role is not Role.INPUT and is_exchangeable(storage)

    def fixed(self, given: Given) -> frozenset[str]:
        graph, tensors = given.captured.graph, given.tensors
        staying = frozenset(name for name, item in tensors.items() if not self.may_leave(graph, name, item))
        born = frozenset() if arena.is_available() else graph.kept - tensors.keys()
        return staying | given.captured.elsewhere | born

    def least_bytes(self) -> int:
        return ALIGNMENT_BYTES

    @_with_room()
    def program(self, captured: Captured, planned: Planned) -> Program:
        graph = planned.derived
        if not self._rehearsal.knows(graph):
            self._close_arenas()  # of ops that only a plan has, in place or in parts, which are tried now
        parts = self._rehearsal.of(graph, captured.elsewhere)
        scratch = {name: part.scratch_bytes for name, part in parts.items()}
        elsewhere = outside(graph) | captured.elsewhere
        addresses = addresses_of(graph, scratch, elsewhere, page_bytes=self._arena.page_bytes)
        aims = {
            at: _aims(graph, item, parts[item.name], addresses.stays.get(at, {}))
            for at, item in enumerate(graph.instructions)
            if isinstance(item, Op)
        }
        return lower(graph, self._unread, addresses, aims, sunk(graph, planned.machine), costs=planned.costs)

    def needed_bytes(self, planned: Planned, program: Program) -> int:
        """Scratch is in the arena where the allocator can be directed, and beside it otherwise."""
        scratch = [0 if self._rehearsal.directed else cost.workspace_bytes for cost in planned.costs.values()]
        addresses = program.placed
        return self._taken_by(addresses.arena_bytes, addresses) + max(scratch, default=0)

    def install(self) -> None:
        """The allocator is directed from the beginning."""

    @_with_room()
    def make_ready(self, program: Program, tensors: Mapping[str, Tensor], capacity_bytes: int) -> Spill | None:
        addresses = program.placed
        self._device.streams.follow()
        spill, was_here = self._beside.ready(program, tensors, self._make_way)
        if was_here:
            self._device.give_back()
        beside_bytes = self._device.taken_by(addresses.beside)
        there = (tensor.untyped_storage() for tensor in tensors.values())
        self.give_way(max(0, addresses.arena_bytes - self._arena.size_bytes), beside_bytes, there)
        most = max(addresses.arena_bytes, capacity_bytes - beside_bytes)
        self._arena.reserve(addresses.arena_bytes, most)
        self._device.settle_libraries()
        return spill

    def _make_way(self, coming_bytes: int) -> None:
        """Let so much come home to the device."""
        self._arena.close()
        self.give_way(coming_bytes)

    def give_way(self, more_bytes: int, beside_bytes: int = 0, there: Iterable[torch.UntypedStorage] = ()) -> None:
        """Arenas of idle steps go first, then what torch keeps for nobody.

        That is what others have freed, such as an evaluation between epochs. It serves what is `beside`.
        """
        if self._baseline_bytes is None:
            return
        most_bytes = self._baseline_bytes + self._budget_bytes
        newly_bytes = 0
        if beside_bytes and self._idle_beside_bytes():  # only they give way to it
            newly_bytes = max(0, beside_bytes - self.held_bytes(there) - self._device.cached_bytes())
        if self.process_bytes() + more_bytes + newly_bytes > most_bytes:
            self._close_idle()
        if self.process_bytes() + more_bytes > most_bytes:
            self._device.give_back()

    def settle_libraries(self) -> None:
        self._device.settle_libraries()

    def moment(self) -> Moment:
        return self._arena.moment()

    def memory(self, program: Program, *, is_timed: bool) -> PlannedMemory:
        return self._arena.memory_of(program, is_timed=is_timed)

    def baseline_bytes(self, tensors: list[Tensor]) -> int:
        """What libraries keep is of the step, which takes it anew."""
        self._close_idle()
        self._device.give_back_all()
        held = self.held_bytes(item.untyped_storage() for item in tensors)
        self._baseline_bytes = max(0, self.process_bytes() - held)
        return self._baseline_bytes

    def process_bytes(self) -> int:
        return self._device.taken_bytes()

    def high_water_bytes(self) -> int:
        return self._device.high_water_bytes()

    def reset_high_water(self) -> None:
        self._device.reset_high_water()

    def held_at_most(self, program: Program, recording: Recording) -> int:  # noqa: ARG002
        """The arena, with the holes between addresses, what lies beside it, and arenas of idle steps."""
        return self._taken_by(self._arena.size_bytes, program.placed) + self._idle_beside_bytes()

    def resting_bytes(self) -> int:
        return self._arena.size_bytes

    def keep_at_most(self, size_bytes: int) -> None:
        """Do nothing: to come home closes the arenas, and that goes before."""

    def idle_bytes(self) -> int:
        return self.resting_bytes() + self._idle_beside_bytes()

    def held_bytes(self, storages: Iterable[torch.UntypedStorage]) -> int:
        home = self._device.torch_device
        return resident_bytes(item for item in storages if item.device == home)

    def unseen_bytes(self, graph: Graph, within: int) -> int:  # noqa: ARG002
        return self._device.unseen_bytes

    def trim(self) -> None:
        self._device.give_back()

    def come_home(self, storages: Iterable[torch.UntypedStorage], *, is_own: bool) -> None:
        """Close the arenas, since no planned step runs now. What still finds no room stays where it is."""
        self._close_arenas()
        self.give_way(0)
        try:
            bring_home(item for item in storages if not is_own or self._beside.spill.has(item))
        except torch.OutOfMemoryError:
            remark(_STAYS)

    def forget(self, program: Program) -> None:
        self._arena.forget(program)

    def close(self) -> None:
        self._beside.spill.close()
        self._arena.close()

    def _idle_beside_bytes(self) -> int:
        return sum(other.resting_bytes() for other in self._idle_beside())

    def _idle_beside(self) -> list["OnDevice"]:
        """Other steps, and parts, of this device that do not run."""
        with _idle_lock:
            others = [other for other in _known if not other._is_busy]
        return [other for other in others if other is not self and _is_one(other._device, self._device)]

    def _close_arenas(self) -> None:
        """Give back the arenas of this step and of others, while no planned step runs."""
        self._close_idle()
        self._arena.close()

    def _close_idle(self) -> None:
        """Give back the arenas of other steps, which take them anew when they run."""
        with _idle_lock:
            for other in self._idle_beside():
                other._arena.close()

    def _taken_by(self, arena_bytes: int, addresses: Addresses) -> int:
        """Return what an arena takes, and what lies beside it; an arena of pages is no tensor of torch's."""
        if self._arena.pages is not None:
            return arena_bytes + self._device.taken_by(addresses.beside)
        return self._device.taken_by([arena_bytes, *addresses.beside])

    def _unread(self, size_bytes: int) -> torch.UntypedStorage:
        """Return a storage of which only the layout matters; some kernels read it, but ignore what they read."""
        address = given_room(self._device, size_bytes, partial(self._nothing.address, size_bytes))
        return storage_on(self._device.torch_device, address, size_bytes)


def _is_one(device: BesideHost, other: BesideHost) -> bool:
    """Whether two are one device. What stands in for one on the host has memory of its own."""
    return device is other or (device.torch_device == other.torch_device != CPU)


def _reads(captured: Captured) -> int:
    """Return how many numbers of the device a step reads."""
    graph, elsewhere = captured.graph, captured.elsewhere
    reads = (op for op in graph.ops if op.operator == _READS)
    return sum(graph.values[op.operands[0]].storage not in elsewhere for op in reads)


def _aims(graph: Graph, op: Op, part: Rehearsed, stays: Mapping[str, int]) -> tuple[Aim, ...]:
    """Return which allocations of an op are to become storages, in the arena or beside it."""
    found: list[Aim] = []
    for place, (number, size) in part.results.items():
        name = op.results[place]
        assert name is not None, "only results that are born were looked for"
        value = graph.values[name]
        if value.storage not in stays or size <= graph.storages[value.storage].size_bytes:
            found.append(Aim(number, size, value.storage))
    return tuple(found)
