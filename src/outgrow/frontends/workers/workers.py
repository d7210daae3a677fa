"""How do the workers of a mesh train together? Each cuts the state once, and runs its part of every step.

At the first call all tensors of models and optimizers are cut, as the captured step asks for it: a parameter becomes a
`DTensor` of which this worker has its part, in the module and in the optimizer. Later steps take what lasts as it is
cut. A division into several levels uses a mesh of as many dimensions, since a tensor may be cut along another dimension
at each level.

Workers that do not do the same would wait for each other for ever, so they first compare what they are about to do
(`frontends.workers.agreement`).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from gc import get_referrers
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.training.state import (
    ParameterSlot,
    Spread,
    StateSlot,
    Training,
    hyper_parameters,
    parameters,
    put,
    read,
    state_tensors,
    storage_name,
)
from outgrow.frontends.workers.agreement import Agreement, digest
from outgrow.frontends.workers.dataflow import divisible_dataflow, put_back
from outgrow.frontends.workers.divided import divided
from outgrow.operators.dataflow import Dataflow
from outgrow.operators.regions import shape_of
from outgrow.planning.partition.lacking import WHOLE
from outgrow.planning.partition.partition import factors, partition
from outgrow.planning.partition.shares import Shares, held
from outgrow.units import format_bytes

FOR_TENSORS = 0.75
"""The share of a budget that tensors may fill when a step is divided; the rest is for what else a process takes."""
_FACTS = ("the state of torch's generator", "the batch", "learning rates and other numbers of optimizers")


@dataclass(frozen=True, slots=True)
class Received:
    """The bytes that this worker has received in all steps, and those that each worker is to receive in one."""

    received_bytes: int
    predicted_bytes: tuple[int, ...]

    def __str__(self) -> str:
        """Return both in words."""
        each = ", ".join(map(format_bytes, self.predicted_bytes))
        return f"received so far: {format_bytes(self.received_bytes)}; to be received in a step, by worker: {each}"


class Workers:
    """The workers of a mesh of one dimension, as one of them sees them.

    Raises `ValueError` for a mesh of more dimensions, or of which this process is no part, and `TypeError` for none.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(
                f"mesh is a {type(mesh).__name__}. Give the DeviceMesh of the processes that share the step."
            )
        if mesh.ndim != 1:
            raise ValueError(f"mesh has {mesh.ndim} dimensions. Give one of a single dimension, which outgrow divides.")
        if mesh.device_type != "cpu":
            raise ValueError(f"mesh is one of {mesh.device_type}. Give one of cpu: other devices are not there yet.")
        if mesh.get_coordinate() is None:
            raise ValueError("This process is no part of the mesh. Give a mesh of all processes that run this script.")
        self.count, self.number = mesh.size(), mesh.get_local_rank()
        self.counts = torch.zeros(2, dtype=torch.int64)
        self._mesh, self._group = mesh, mesh.get_group()
        self._agreement = Agreement(self._group, self.count, self.number)
        self._levels: DeviceMesh | None = None
        self._states: dict[StateSlot, tuple[int, ...]] = {}
        self._spreads: dict[StateSlot, Spread] = {}
        self.shares: Shares | None = None

    @property
    def shared(self) -> Received:
        """What the workers exchange in a step, and what this one has received."""
        assert self.shares is not None, "a step was divided"
        return Received(int(self.counts[1]), self.shares.received_bytes())

    @property
    def spreads(self) -> Mapping[StateSlot, Spread]:
        """How tensors are spread, by slot."""
        return dict(self._spreads)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let no other worker wait for this one where a call fails before the step runs."""
        self._agreement.begin(len(_FACTS))
        try:
            yield
        finally:
            self._agreement.refuse()

    def agree_on(self, entry: int | None, training: Training, batch: Sequence[object]) -> bool:
        """Whether all workers serve a call by this entry.

        Raises `Divided` where they do, and rates, random numbers or batches are not the same.
        """
        return self._agreement.agree_on(entry, _facts(training, batch))

    def go(self) -> None:
        """Wait until all workers are ready to run the step. Raises `Divided` if one of them is not."""
        self._agreement.go()

    def divided(self, traced: Traced, training: Training, batch: Sequence[object], budget_bytes: int) -> Traced:
        """Return this worker's part of a step. What lasts of it is still to be `cut`.

        Raises `Divided` where workers do not agree on the step, the parameters, the seeds or the batch.
        """
        step = divisible_dataflow(traced)
        budget_bytes = self._agreed(step, training, batch, budget_bytes)
        for slot, tensor in state_tensors(training).items():
            if isinstance(tensor, DTensor):
                self._states[slot], self._spreads[slot] = self._found(slot, tensor), Spread.of(tensor)
        outputs = put_back(traced, step)
        found = partition(step, self.count, self._fixed(outputs), memory_bytes=budget_bytes * FOR_TENSORS)
        shares = self.shares = Shares(step, found)
        is_read = {name for node in step.nodes for name in node.operands}
        there = [slot for slot in state_tensors(training) if storage_name(slot) in step.tensors]
        lasting = {slot: storage_name(slot) for slot in there if slot not in outputs or storage_name(slot) in is_read}
        for slot, name in (*lasting.items(), *outputs.items()):
            self._note(slot, torch.Size(step.tensors[name].shape), shares.states(name))
        return divided(traced, shares, self.number, self._group.group_name, self.counts, self._states)

    def _fixed(self, outputs: Mapping[StateSlot, str]) -> dict[str, tuple[int, ...]]:
        """Return how tensors are cut that hang, before a step or after it, in slots that are cut already."""
        after = {name: self._states[slot] for slot, name in outputs.items() if slot in self._states}
        return after | {storage_name(slot): states for slot, states in self._states.items()}

    def _note(self, slot: StateSlot, shape: torch.Size, states: tuple[int, ...]) -> None:
        if slot in self._states:
            return
        self._states[slot] = states
        if len(shape) > 0:
            placements = tuple(Replicate() if state == WHOLE else Shard(state) for state in states) or (Replicate(),)
            is_even = placements[0] == Replicate() or shape[states[0]] % self.count == 0
            is_flat = len(set(placements)) == 1 and is_even
            placed = (self._mesh, placements[:1]) if is_flat else (self._mesh_of_levels(), placements)
            self._spreads[slot] = Spread(*placed, shape)

    def _found(self, slot: StateSlot, tensor: DTensor) -> tuple[int, ...]:
        """Return how a tensor that is cut already is cut, division by division.

        Raises `Uncapturable` for one that is spread in another way, or over another mesh, than ours.
        """
        dims = [item.dim if isinstance(item, Shard) else WHOLE for item in tensor.placements]
        levels = factors(self.count)
        states = tuple(dims) if len(dims) == len(levels) else tuple(dims[0] for _ in levels)
        own = held(tuple(tensor.shape), states, self.count).boxes[self.number]
        if shape_of(own) != tuple(tensor.to_local().shape):
            raise Uncapturable(
                f"{storage_name(slot)} is spread by {tensor.placements} over {tensor.device_mesh}, which is not how "
                "this mesh divides it; give the tensor as it is, or spread by the same mesh"
            )
        return states

    def _mesh_of_levels(self) -> DeviceMesh:
        """Return the mesh that has a dimension for each division."""
        if self._levels is None:
            self._levels = DeviceMesh(self._mesh.device_type, self._mesh.mesh.reshape(factors(self.count)))
        return self._levels

    @torch.inference_mode(mode=False)
    def cut(self, training: Training) -> None:
        """Replace every tensor that is to be spread and is still whole by this worker's part of it, one by one.

        Whatever the first call does, later ones may train the parts.
        """
        whole = [slot for slot, tensor in state_tensors(training).items() if not isinstance(tensor, DTensor)]
        for slot in whole:
            if slot in self._spreads and not isinstance(slot, ParameterSlot):
                tensor = read(slot, training)
                assert isinstance(tensor, Tensor), "a tensor hangs there"
                put(slot, self._around(slot, tensor), training)
        holders = _holders(training)
        for slot in whole:
            if slot in self._spreads and isinstance(slot, ParameterSlot):
                parameter = read(slot, training)
                assert isinstance(parameter, nn.Parameter), "a parameter hangs there"
                part = nn.Parameter(self._around(slot, parameter), requires_grad=parameter.requires_grad)
                part.grad = parameter.grad
                for container, key in holders[id(parameter)]:
                    container[key] = part
                for optimizer in training.optimizers:
                    if parameter in optimizer.state:
                        optimizer.state[part] = optimizer.state.pop(parameter)

    def _around(self, slot: StateSlot, tensor: Tensor) -> Tensor:
        spread = self._spreads[slot]
        box = held(tuple(tensor.shape), self._states[slot], self.count).boxes[self.number]
        part = tensor.detach()
        for dim, (begin, end) in enumerate(box):
            part = part.narrow(dim, begin, end - begin)
        return spread.around(part if part.shape == tensor.shape else part.clone(memory_format=torch.contiguous_format))

    def _agreed(self, step: Dataflow, training: Training, batch: Sequence[object], budget_bytes: int) -> int:
        """Raise `Divided` where workers do not do the same; return the smallest of their budgets."""
        calls = repr([(node.call, node.operands, node.results) for node in step.nodes])
        state = {slot: item for slot, item in state_tensors(training).items() if not isinstance(item, DTensor)}
        others = [item for slot, item in state.items() if not isinstance(slot, ParameterSlot)]
        facts = {
            "the operators of the step": hashlib.sha256(calls.encode()).hexdigest(),
            **_facts(training, batch),
            "parameters": digest([item for slot, item in state.items() if isinstance(slot, ParameterSlot)]),
            "buffers, gradients or the state of optimizers": digest(others),
        }
        return self._agreement.compare(facts, budget_bytes)


def _facts(training: Training, batch: Sequence[object]) -> dict[str, int]:
    """Return what is compared before each step, by name."""
    rates = torch.tensor([*hyper_parameters(training).values()], dtype=torch.float64)
    return dict(zip(_FACTS, (digest([torch.get_rng_state()]), digest(batch), digest([rates])), strict=True))


def _holders(training: Training) -> dict[int, list[tuple[Any, Any]]]:
    """Return, by the identity of a parameter, the tables and lists that hold it, and where in them."""
    found: dict[int, list[tuple[Any, Any]]] = {}
    for container in _containers(training):
        for key, item in enumerate(container) if isinstance(container, list) else container.items():
            if isinstance(item, nn.Parameter):
                found.setdefault(id(item), []).append((container, key))
    return found


@contextmanager
def one_by_one(training: Training) -> Iterator[None]:
    """Let optimizers update one tensor after the other: a call on all of them at once cannot be cut.

    They compute the same, up to rounding.
    """
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    before = [{key: group[key] for key in ("foreach", "fused") if key in group} for group in groups]
    try:
        for group, options in zip(groups, before, strict=True):
            group.update(dict.fromkeys(options, False))
        yield
    finally:
        for group, options in zip(groups, before, strict=True):
            group.update(options)


def check_replaceable(training: Training) -> None:
    """Refuse to replace parameters that the script holds elsewhere, since it would go on with the old ones.

    Raises `Uncapturable` for one in a container that is no module's and no optimizer's, or with hooks.
    """
    items = [item for item in parameters(training).values() if not isinstance(item, DTensor)]
    known = {id(items), *map(id, _containers(training)), *(id(optimizer.state) for optimizer in training.optimizers)}
    for item in items:
        if item._backward_hooks or item._post_accumulate_grad_hooks:
            raise Uncapturable(
                f"a parameter of shape {tuple(item.shape)} has hooks, which its parts would not have; do without them "
                "where the step is divided over a mesh"
            )
    for holder in get_referrers(*items) if items else ():
        if isinstance(holder, list | dict | tuple | set) and id(holder) not in known:
            raise Uncapturable(
                f"a parameter is held in a {type(holder).__name__} beside its model and optimizer, which would not see "
                "the part that replaces it; ask model.parameters() anew in each step"
            )


def _containers(training: Training) -> Iterator[list[Any] | dict[str, Any]]:
    """Yield what holds parameters: tables and lists of modules, and lists of optimizers."""
    for module in (module for model in training.models for module in model.modules()):
        yield module._parameters
        yield from (item for item in vars(module).values() if isinstance(item, list))
    for optimizer in training.optimizers:
        yield from (group["params"] for group in optimizer.param_groups)
