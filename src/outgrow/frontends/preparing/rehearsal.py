"""What does an op cost on a device, and what does it allocate? It is run by itself, before anything is planned.

A device that the host does not wait for takes milliseconds for what a CPU takes seconds for, so each kind of op (the
same operator, arguments and layouts) is tried alone, on operands of its own:

    once         so that libraries load kernels and take what they keep
    watched      which of its allocations become results, and how much scratch the others need
    some times   between two marks on the stream, which is kept busy until all are queued: the seconds of one

For a convolution cuDNN knows several algorithms. If the memory for one is refused, it silently takes another one, with
other bits, and for good, but only in that thread. So a convolution is first tried on a thread of its own, and if any
memory was refused there, the device counts as having no memory for it.

So the first plan knows all costs, and where each result is allocated. Operands are noise between a quarter and one;
integers are 0, an index that every table has, except where the sizes of results depend on them (`preparing.contents`).
Most ops take about the same time whatever the contents; only where rows are gathered or summed by index do all go to
one place, which may be slower.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from statistics import median

import torch

from outgrow.analysis.cost import COMPILED, NUMBER_SECONDS, OF_NUMBERS, Cost, cost_key, workspace_bound
from outgrow.analysis.timeline import Lane
from outgrow.errors import ReplayMismatch
from outgrow.frontends.fake.kernels.lists import by_torch
from outgrow.frontends.lowering.lower import call_of, geometry_of, stand_ins
from outgrow.frontends.preparing.contents import as_captured
from outgrow.frontends.user.training.devices import CPU
from outgrow.ir.graph import Graph, Op
from outgrow.runtime.device import BesideHost
from outgrow.runtime.directed import scratch_needed, watched
from outgrow.runtime.program import Call, Geometry, Item
from outgrow.runtime.results import results_of

_ROUNDS, _TURNS = 3, 4
_SCALARS: Mapping[str, Item] = {"float": 0.5, "int": 1, "bool": True}
_OF_THE_HOST = (*OF_NUMBERS, "outgrow")
"""Namespaces of functions that are no kernels of the device: on numbers, or on the state of a generator."""
_CHOOSES = "convolution"


def chooses(op: Op) -> bool:
    """Whether a library knows several algorithms for an op."""
    return _CHOOSES in op.operator


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one op was seen to do: its seconds, its scratch, and for each result, by place, its (allocation, bytes)."""

    seconds: float
    scratch_bytes: int = 0
    results: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])


_KNOWN: dict[tuple[str, bool], dict[str, Rehearsed]] = {}
"""What was tried in this process, for any step: by the name of the device and whether allocations were watched."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the kinds of ops were seen to do on a device; `directed` says that its allocations can be watched."""

    device: BesideHost
    directed: bool

    def knows(self, graph: Graph) -> bool:
        """Whether each op of a graph was tried before."""
        parts = _KNOWN.get((self.device.name, self.directed), {})
        return all(cost_key(graph, op) in parts for op in graph.ops)

    def of(self, graph: Graph, elsewhere: Collection[str]) -> dict[str, Rehearsed]:
        """Return what each op of a graph does, by name; storages `elsewhere` are the host's.

        Raises torch's `OutOfMemoryError` for an op that the device has no memory to try.
        """
        keys = {op.name: cost_key(graph, op) for op in graph.ops}
        kinds = {keys[op.name]: op for op in graph.ops}
        parts = self._of_kinds(graph, kinds, elsewhere, lambda _share: None, must=True)
        return {name: parts[key] for name, key in keys.items()}

    def costs(self, graph: Graph, elsewhere: Collection[str], tell: Callable[[float], None]) -> dict[str, Cost]:
        """Return the costs of the ops of a graph, by key, except of ops that the device has no memory to try.

        Such an op may be tried in parts once it is planned. Where allocations cannot be watched, the workspace is a
        bound, and includes the results, since they are copied.
        """
        kinds = {cost_key(graph, op): op for op in graph.ops}
        parts = self._of_kinds(graph, kinds, elsewhere, tell, must=False)
        found: dict[str, Cost] = {}
        for key, op in kinds.items():
            if key in parts:
                part = parts[key]
                workspace = part.scratch_bytes if self.directed else workspace_bound(graph, op) + _born_bytes(graph, op)
                found[key] = Cost(part.seconds, workspace, measured=True)
        return found

    def _of_kinds(
        self,
        graph: Graph,
        kinds: Mapping[str, Op],
        elsewhere: Collection[str],
        tell: Callable[[float], None],
        *,
        must: bool,
    ) -> Mapping[str, Rehearsed]:
        """Return what one op of each kind does, by key, trying the kinds that were not tried before."""
        parts = _KNOWN.setdefault((self.device.name, self.directed), {})
        new = {key: op for key, op in kinds.items() if key not in parts}
        if new:
            # a part is planned inside of the user's autocast, and runs without
            with torch._C._DisableAutocast(), _generators_kept(self.device.torch_device):
                for at, (key, op) in enumerate(new.items()):
                    tell(at / len(new))
                    try:
                        parts[key] = self._tried_well(graph, op, elsewhere)
                    except torch.OutOfMemoryError:
                        if must:
                            raise
            self.device.give_back()
        return parts

    def _tried_well(self, graph: Graph, op: Op, elsewhere: Collection[str]) -> Rehearsed:
        """Try an op; if it finds no memory, once more after all that is cached was given back.

        An operand may have been put into a segment that is larger than it, of which the rest serves nobody.
        """
        with suppress(torch.OutOfMemoryError):
            return self._tried(graph, op, elsewhere)
        self.device.give_back()  # not while the error is there, which holds the operands
        return self._tried(graph, op, elsewhere)

    def _tried(self, graph: Graph, op: Op, elsewhere: Collection[str]) -> Rehearsed:
        runs = by_torch(op.operator)
        is_of_host = runs.partition(".")[0] in _OF_THE_HOST and not runs.startswith(COMPILED)
        if is_of_host or _only_checks(graph, op):
            return Rehearsed(NUMBER_SECONDS)
        alone = _alone(graph, op)
        call = call_of(alone, op, stand_ins(alone, self._unread))
        operands = self._operands(alone, op, elsewhere)

        def run() -> object:
            return call.run(operands.__getitem__)

        with torch.no_grad():
            if chooses(op):
                self._first(run)
            self._check_devices(call, run(), elsewhere)
            scratch, results = self._watched(call, run) if self.directed else (0, {})
            seconds = median(self._timed(run) for _ in range(_ROUNDS))
        return Rehearsed(seconds, scratch, results)

    def _first(self, run: Callable[[], object]) -> None:
        """Run an op on a thread that ends when the device has done it, on the stream of this one.

        Raises torch's `OutOfMemoryError` where some of its memory was refused. A search of cuDNN for the quickest
        algorithm asks for more than it needs, and what finds no memory is not chosen.
        """
        before = self.device.refusals()
        home = self.device.torch_device
        stream = torch.cuda.current_stream(home) if home.type == "cuda" else None

        def alone() -> None:
            with torch.no_grad(), ExitStack() as there:
                if stream is not None:
                    there.enter_context(torch.cuda.device(home))  # leaves without a context on another device
                    there.enter_context(torch.cuda.stream(stream))
                run()
                self.device.streams.mark(Lane.COMPUTE).wait()

        with ThreadPoolExecutor(1) as pool:
            failure = pool.submit(alone).exception()
        try:
            if self.device.refusals() > before and (failure is not None or not torch.backends.cudnn.benchmark):
                raise torch.OutOfMemoryError("the device has no memory for the algorithm of this operator") from failure
            if failure is not None:
                raise failure
        finally:
            del failure  # with its traceback it would hold this frame, and so the operands, until garbage is collected

    def _check_devices(self, call: Call, returned: object, elsewhere: Collection[str]) -> None:
        """Raise `ReplayMismatch` for a result that is born in other memory than the capture says."""
        for _, storage, item in _born(call, returned):
            home = self._home(storage, elsewhere)
            if item.device != home:
                raise ReplayMismatch(
                    f"{call.name} returned a tensor on {item.device}, but {home} was captured. Run this step in "
                    "eager mode."
                )

    def _watched(self, call: Call, run: Callable[[], object]) -> tuple[int, dict[int, tuple[int, int]]]:
        returned, allocations = watched(run, self.device.torch_device)
        numbers = {item.address: at for at, item in enumerate(allocations) if item.died is None}
        results: dict[int, tuple[int, int]] = {}
        for place, _, item in _born(call, returned):
            number = numbers.get(item.untyped_storage().data_ptr())
            if number is not None:
                results[place] = (number, allocations[number].bytes)
        return scratch_needed(allocations, {number for number, _ in results.values()}), results

    def _timed(self, run: Callable[[], object]) -> float:
        streams = self.device.streams
        self.device.keep_busy()  # or the first mark would be passed before the host has called the first one
        begin = streams.mark(Lane.COMPUTE)
        for _ in range(_TURNS):
            run()
        return streams.mark(Lane.COMPUTE).seconds_since(begin) / _TURNS

    def _operands(self, graph: Graph, op: Op, elsewhere: Collection[str]) -> Mapping[str, Item]:
        """Return a tensor or a number for each value that an op reads; those of one storage share memory."""
        storages: dict[str, torch.UntypedStorage] = {}
        operands: dict[str, Item] = {}
        for name in op.operands:
            geometry = geometry_of(graph, name)
            if geometry.dtype is None:
                operands[name] = _SCALARS[graph.values[name].dtype]
                continue
            if geometry.storage not in storages:
                storages[geometry.storage] = self._storage(graph, geometry.storage, elsewhere)
            operands[name] = _filled(storages[geometry.storage], geometry)
        return as_captured(graph, op, operands)

    def _storage(self, graph: Graph, name: str, elsewhere: Collection[str]) -> torch.UntypedStorage:
        size = max(1, graph.storages[name].size_bytes)
        return torch.zeros(size, dtype=torch.uint8, device=self._home(name, elsewhere)).untyped_storage()

    def _home(self, storage: str, elsewhere: Collection[str]) -> torch.device:
        return CPU if storage in elsewhere else self.device.torch_device

    def _unread(self, size_bytes: int) -> torch.UntypedStorage:
        return torch.empty(max(1, size_bytes), dtype=torch.uint8, device=self.device.torch_device).untyped_storage()


def _born(call: Call, returned: object) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Yield place, storage and tensor of each result with which a storage is born."""
    for place, (result, item) in enumerate(zip(call.results, results_of(returned), strict=False)):
        if result is not None and result.born is not None and isinstance(item, torch.Tensor):
            yield place, result.born, item


def _only_checks(graph: Graph, op: Op) -> bool:
    """Whether an op makes and writes no bytes: noise would not pass what it checks, and a failure ends a GPU's work."""
    return not op.results and not any(graph.storages[name].size_bytes for name in op.writes)


def _born_bytes(graph: Graph, op: Op) -> int:
    values = (graph.values[name] for name in op.results if name is not None)
    return sum(graph.storages[value.storage].size_bytes for value in values if value.version == 0)


def _alone(graph: Graph, op: Op) -> Graph:
    """Return the graph with only this op."""
    return Graph(graph.storages, graph.values, (op,))


def _filled(storage: torch.UntypedStorage, geometry: Geometry) -> torch.Tensor:
    tensor = geometry.over(storage)
    if tensor.is_floating_point() and tensor.itemsize > 1 and 0 not in geometry.strides:
        tensor.uniform_(0.25, 1.0)
    return tensor


def _generators_kept(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that leaves the generators as they were: ops that draw are tried too."""
    return torch.random.fork_rng(devices=[device.index] if device.type == "cuda" else [])
