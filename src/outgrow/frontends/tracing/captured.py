"""What is a captured step? A graph, where its inputs come from, and where its results go.

A `Captured` step is the graph together with the slots (`frontends.user.training.state`) from which each input storage
is fetched at a call, the hyper-parameters that feed its host scalars, and the slots into which results are put. It
serves every call with the same `frontends.tracing.signature` whose hyper-parameters keep the guards.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler

from outgrow.analysis.updates import written_before_updates
from outgrow.frontends.fake.looks.counters import Counted
from outgrow.frontends.fake.looks.guessing import Guess, Told
from outgrow.frontends.fake.looks.questions import Question, Read, first_changed
from outgrow.frontends.tracing.leaf import Kind
from outgrow.frontends.tracing.noticed import LeavingSlot
from outgrow.frontends.user.left.changes import Change, Filled
from outgrow.frontends.user.left.counts import Count
from outgrow.frontends.user.left.gathered import GoingOn, ListSlot, PlaceSlot
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.left.refusing import Left
from outgrow.frontends.user.left.renewed import Made, copied, renewed
from outgrow.frontends.user.reach.configuration import content
from outgrow.frontends.user.training.devices import CPU
from outgrow.frontends.user.training.guards import Guards
from outgrow.frontends.user.training.plain import Number, NumberSlot
from outgrow.frontends.user.training.sharing import address, geometry, overlap, place
from outgrow.frontends.user.training.state import (
    BatchSlot,
    BufferSlot,
    ConstantSlot,
    GradientSlot,
    GroupSlot,
    HeldSlot,
    OptimizerSlot,
    OutsideSlot,
    ParameterSlot,
    Slot,
    Spread,
    StateSlot,
    Training,
    local,
    put,
    read,
    state_tensors,
)
from outgrow.frontends.user.unseen.behind import with_nothing_behind
from outgrow.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Put:
    """After the step, result number `result` hangs in `slot`; if it is None, the slot is empty.

    `number` is its content, if it is one number that is the same in every call: a counter that begins, in a tensor or,
    where there is no result, as it is. If it `is_data`, the tensor that hangs there stays, with the result's memory.
    """

    slot: StateSlot
    result: int | None
    number: float | None = None
    is_data: bool = False

    def hang(self, value: Tensor | float | None, training: Training) -> None:
        """Hang what the result is in the slot."""
        if not self.is_data:
            put(self.slot, value, training)
            return
        there = read(self.slot, training)
        assert isinstance(there, Tensor), "a tensor whose .data is set stays in its slot"
        assert isinstance(value, Tensor), "and has the memory of another one"
        there.data = value


@dataclass(frozen=True, slots=True)
class GraphResult:
    """The result of the graph of this number, and how the step returns it."""

    number: int
    kind: Kind

    def of(self, results: Sequence[object]) -> object:
        """Return the result as the step returns it."""
        result = results[self.number]
        if not (self.kind.has_graph or self.kind.wants_gradient):
            return result
        assert isinstance(result, Tensor), "only tensors have gradients"
        return with_nothing_behind(result) if self.kind.has_graph else result.detach().requires_grad_()


@dataclass(frozen=True, slots=True)
class Returned:
    """What the step returns, or leaves outside: each leaf is a `GraphResult` or a constant."""

    structure: pytree.TreeSpec
    leaves: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A tensor that the step found outside, the storage that is its memory, and shape, strides and offset in it.

    The step is captured for that, and right only while it lies so.
    """

    tensor: Tensor
    storage: str
    geometry: tuple[object, ...]

    @staticmethod
    def of(tensor: Tensor, storage: str) -> "Found":
        """Return a tensor as it is now."""
        return Found(tensor, storage, _lying(tensor))

    def still_lies(self, owners: Mapping[str, Tensor]) -> bool:
        """Whether it lies as it did in what are the tensors that own the storages now."""
        owner = owners.get(self.storage)
        is_there = owner is None or owner is self.tensor or place(owner) == place(local(self.tensor))
        return is_there and _lying(self.tensor) == self.geometry


def _lying(tensor: Tensor) -> tuple[object, ...]:
    tensor = local(tensor)
    *lies, _ = geometry(tensor)
    return (*lies, tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg(), tensor.requires_grad)


def _is_another(found: object, number: Number) -> bool:
    """Whether a number is not what it was, to the sign of a zero; one that is no number may still be none."""
    return found is not number and content(found) != content(number)


@dataclass(frozen=True)
class Captured:
    """A training step as a graph, how it is fed, for which calls it is right, and what becomes of its results.

    Each input storage is that of the tensor in its slot (`slots`). Offsets of values count from the first byte of that
    storage; for a batch slot from the tensor's own first byte, so that a batch may be a slice of something larger.

    Results of the graph that no `Put` and no leaf of `returned` names are gradients that were there before the step.
    """

    graph: Graph
    slots: Mapping[str, Slot]
    hyper: Mapping[str, NumberSlot]
    """The slots of numbers that are scalars of the graph, by the names of these."""
    puts: tuple[Put, ...]
    stale: tuple[GradientSlot, ...]
    """Gradients that are replaced unread, as in a step that begins with `zero_grad`: no inputs, so they can go when the
    step begins."""
    returned: Returned
    guards: Guards
    """Conditions on the hyper-parameters, followed by the `counters`."""
    constants: tuple[Tensor, ...]
    found: tuple[Found, ...] = ()
    """Tensors outside: the step serves while they lie as they lay."""
    schedulers: tuple[LRScheduler, ...] = ()
    """They make a step of their own after every call."""
    flags: Mapping[ParameterSlot, bool] = field(default_factory=dict[ParameterSlot, bool])
    """What parameters are given after every call: that they are trained from then on, or no more."""
    settled: tuple[Change, ...] = ()
    """What is set in attributes after every call."""
    overwritten: tuple[Left, ...] = ()
    """Attributes in which eager mode would have a value of the step after a call."""
    outside: Outside = field(default_factory=Outside)
    """The step serves while this is what it was."""
    changed: tuple[Change, ...] = ()
    """What is changed outside after every call."""
    gathered: tuple[LeavingSlot, ...] = ()
    """Where something is left outside after every call."""
    results: Returned | None = None
    """What that is: a list of it."""
    anew: frozenset[int] = frozenset()
    """The containers that the step makes and leaves or returns, by identity: each call gets others."""
    counts: tuple[Count, ...] = ()
    """Numbers outside, or in attributes, that go on with every call."""
    counters: tuple[Counted, ...] = ()
    questions: tuple[Question, ...] = ()
    """The step serves while these have the same answers for the batch, buffers and tensors outside."""
    guesses: tuple[Guess, ...] = ()
    """Whether they are right, a run finds."""
    spreads: Mapping[StateSlot, Spread] = field(default_factory=dict[StateSlot, Spread])
    """Tensors that are spread over a mesh: this process has its part of them."""
    device: torch.device = CPU
    elsewhere: frozenset[str] = frozenset()
    """Where the device is not the host: small storages of the host, which stay there."""
    numbers: Mapping[NumberSlot, Number] = field(default_factory=dict[NumberSlot, Number])
    """Other numbers that optimizers keep: the step serves while they are what they were."""

    def counting(self, counts: tuple[Count, ...]) -> "Captured":
        """Return this step as one that serves whatever these numbers are, and raises them after each call."""
        keys = {count.location.key for count in counts}
        return replace(
            self,
            outside=self.outside.without(keys),
            changed=tuple(item for item in self.changed if item.location.key not in keys),
            settled=tuple(item for item in self.settled if item.location.key not in keys),
            counts=counts,
        )

    def looking_at(self, counts: Iterable[Count]) -> "Captured":
        """Return this step as one that serves only while numbers stay that others count up and this one does not."""
        own = {*(count.location.key for count in self.counts), *(slot.key for slot in self._outside_slots)}
        others = [count.location for count in counts if count.location.key not in own]
        return replace(self, outside=self.outside.also(others)) if others else self

    def leave(self) -> None:
        """Leave attributes, and what is outside, as the step does."""
        made = Made()
        for item in (*self.settled, *self.changed):
            renewed(item, self.anew, made).leave()
        for item in self.counts:
            item.leave()

    def show(self) -> None:
        """Let attributes show the results of a call, and refuse to be read where eager mode would have left others."""
        for item in self.overwritten:
            (item.show if item.node else item.withhold)()

    @cached_property
    def batch_leaves(self) -> dict[str, int]:
        """The number of the argument, among all leaves, of each input storage that is one's."""
        return {name: slot.leaf for name, slot in self.slots.items() if isinstance(slot, BatchSlot)}

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The storages of inputs that the step writes."""
        written = frozenset(name for names in self.graph.written_at for name in names)
        return tuple(name for name in self.slots if name in written)

    @cached_property
    def written_aloud(self) -> tuple[str, ...]:
        """The written storages whose versions eager mode raises: the operators' schemas say that they are written."""
        written = zip(self.graph.ops, self.graph.written_at, strict=True)
        aloud = {name for op, names in written for name in names if name not in op.writes}
        return tuple(name for name in self.written if name in aloud)

    @cached_property
    def written_forward(self) -> tuple[str, ...]:
        """The storages of buffers and tensors outside that may be written before an update: in the forward pass."""
        early = written_before_updates(self.graph)
        kinds = (BufferSlot, ConstantSlot)
        return tuple(name for name in self.written if name in early and isinstance(self.slots[name], kinds))

    @cached_property
    def copied_bytes(self) -> int:
        """What copies of `written_forward` take, to put them back if the step fails before an update."""
        return sum(self.graph.storages[name].size_bytes for name in self.written_forward)

    def storage_of(self, name: str, tensor: Tensor) -> torch.UntypedStorage:
        """The storage that the graph's offsets count from: of a batch, the bytes that the tensor itself spans."""
        storage, size = tensor.untyped_storage(), self.graph.storages[name].size_bytes
        if isinstance(self.slots[name], BatchSlot) and storage.nbytes() != size:
            begin = tensor.storage_offset() * tensor.element_size()
            return storage[begin : begin + size]
        return storage

    def fills_alike(self) -> bool:
        """Whether there is before the step what there was, where it writes to containers and arrays."""
        filled = (item for item in (*self.settled, *self.changed) if isinstance(item, Filled))
        return all(item.still_holds() for item in filled)

    def guards_hold(self, training: Training) -> bool:
        """Whether the step, traced anew with hyper-parameters and counters as they are now, would be this graph."""
        if not (self._is_in_place(training) and all(count.still_holds() for count in self.counts)):
            return False
        if any(_is_another(read(slot, training), number) for slot, number in self.numbers.items()):
            return False
        if not all(slot.still_fits() for slot in (*self._outside_slots, *self.gathered)):
            return False
        seen = [counter.seen(number) for counter, number in self._counted(training)]
        numbers = [number for number in seen if number is not None]
        return len(numbers) == len(seen) and self.guards.hold([*self.hyper_values(training), *numbers])

    def answered_otherwise(self, leaves: Sequence[object], training: Training) -> Question | None:
        """Return what the step has asked and would find otherwise in these leaves of the arguments, and elsewhere."""
        return first_changed(self.questions, lambda at: leaves[at] if isinstance(at, int) else read(at, training))

    def goes(self, told: Told) -> bool:
        """Whether the guesses of the step are those that are told."""
        return told.begins(self.guesses)

    def otherwise(self, *wrong: int) -> Told:
        """Return what is told by a run in which the guesses of these numbers were wrong."""
        return Told.after(self.guesses, wrong)

    def decides_otherwise(self, other: "Captured") -> str | None:
        """Return the line where this step was guessed to go another way than another one does; None if it is not."""
        pairs = zip(self.guesses, other.guesses, strict=False)
        return next((one.line for one, guess in pairs if one != guess), None)

    def is_answered_alike(self, leaves: Sequence[object]) -> bool:
        """Whether the step finds the same, or smaller numbers, in leaves that may be smaller, whatever is elsewhere.

        A question may make no sense there.
        """
        of_batch = (item for item in self.questions if item.of_batch)
        try:
            return first_changed(of_batch, cast("Read", leaves.__getitem__), or_less=True) is None
        except (RuntimeError, IndexError):
            return False

    @cached_property
    def _written_outside(self) -> frozenset[int]:
        """The memory of tensors found outside that the step writes, by address."""
        slots = (self.slots[name] for name in self.written)
        return frozenset(address(self.constants[slot.index]) for slot in slots if isinstance(slot, ConstantSlot))

    @cached_property
    def _written_leaves(self) -> frozenset[int]:
        """The leaves of the arguments that the step writes."""
        slots = (self.slots[name] for name in self.written)
        return frozenset(slot.leaf for slot in slots if isinstance(slot, BatchSlot))

    def is_apart(self, leaves: Sequence[object]) -> bool:
        """Whether no leaf of the arguments shares memory that the step writes with a tensor found outside.

        Nor with another leaf through a storage of its own: signatures tell of others, as of what is trained.
        """
        for at in self._written_leaves:
            others = (leaf for other, leaf in enumerate(leaves) if other != at)
            if any(overlap(leaves[at], other) for other in (*others, *self.constants)):
                return False
        if not self._written_outside:
            return True
        return self._written_outside.isdisjoint(address(leaf) for leaf in leaves if isinstance(leaf, Tensor))

    @cached_property
    def _owners(self) -> frozenset[int]:
        """The modules in whose attributes the step leaves something, by identity."""
        left = [*(item.location.held for item in self.settled), *(item.owner for item in self.overwritten)]
        return frozenset(id(owner) for owner in left if isinstance(owner, nn.Module))

    def _is_in_place(self, training: Training) -> bool:
        """Whether what hangs in slots is spread as it was at the capture, and what has attributes is there."""
        if self._owners and not self._owners <= {id(item) for model in training.models for item in model.modules()}:
            return False
        if not all(item.is_there for item in self.overwritten):
            return False
        there = state_tensors(training) if self.spreads else {}
        pairs = ((there.get(slot), spread) for slot, spread in self.spreads.items())
        return all(Spread.of(tensor) == spread for tensor, spread in pairs if isinstance(tensor, DTensor))

    def counting_slots(self) -> Iterator[StateSlot]:
        """Yield where the counters and the numbers are that go on, rates apart."""
        yield from (counter.slot for counter in self.counters)
        yield from (slot for slot in self.hyper.values() if isinstance(slot, OptimizerSlot))
        yield from (item.slot for item in self.puts if item.slot in self.numbers)

    @property
    def moving(self) -> frozenset[GoingOn]:
        """Numbers that the step changes, or that it has placed, and perhaps rates; lists and places that it uses."""
        placed = (item.slot for item in self.puts if item.result is None and item.number is not None)
        numbers = (slot for slot in placed if isinstance(slot, OptimizerSlot | GroupSlot | OutsideSlot))
        used = (slot for slot in self.gathered if isinstance(slot, ListSlot | PlaceSlot) and slot.is_used)
        return frozenset((*self.hyper.values(), *numbers, *used))

    @cached_property
    def _outside_slots(self) -> tuple[OutsideSlot, ...]:
        """The numbers outside that go on."""
        return tuple(slot for slot in self.hyper.values() if isinstance(slot, OutsideSlot))

    def _counted(self, training: Training) -> Iterator[tuple[Counted, float]]:
        """Yield the counters that the step looks at, and what they are now."""
        for counter in self.counters:
            tensor = read(counter.slot, training)
            assert isinstance(tensor, Tensor), "the signature says that it is a tensor"
            yield counter, tensor.item()

    def hyper_values(self, training: Training) -> list[float]:
        """Return the hyper-parameters as they are now, in the order of `hyper`."""
        found: list[float] = []
        for slot in self.hyper.values():
            value = read(slot, training)
            assert isinstance(value, int | float), "the signature says that it is a number"
            found.append(value if type(value) is int else float(value))  # NumPy's are floats, too
        return found

    def given(self, training: Training, leaves: Sequence[object]) -> "Given":
        """Return the step with what a call with these leaves of the arguments brings for it."""
        found: dict[str, Tensor] = {}
        for name, slot in self.slots.items():
            match slot:
                case BatchSlot(leaf):
                    tensor = leaves[leaf]
                case ConstantSlot(index):
                    tensor = self.constants[index]
                case _:
                    tensor = read(slot, training)
            assert isinstance(tensor, Tensor), f"the signature says that {slot} holds a tensor"
            found[name] = local(tensor)
        return Given(self, found)

    def unflatten(
        self, results: Sequence[object], held: Callable[[HeldSlot], Tensor | None] = lambda _: None
    ) -> object:
        """Return what the step returns, made of the graph's results: tensors, and floats for host scalars.

        What is `held` in a slot by now is returned itself.
        """
        returned, _ = self.left_after(results, held)
        return returned

    def left_after(
        self, results: Sequence[object], held: Callable[[HeldSlot], Tensor | None] = lambda _: None
    ) -> tuple[object, Sequence[object]]:
        """Return what the step returns, and what it leaves where it has `gathered`; a tensor that is both is one."""
        outside = self.results or Returned(pytree.tree_structure([]), ())
        every = (*self.returned.leaves, *outside.leaves)
        wanted = {leaf for leaf in every if isinstance(leaf, GraphResult)}
        there = {leaf: None if leaf.kind.slot is None else held(leaf.kind.slot) for leaf in wanted}
        found = {leaf: leaf.of(results) if tensor is None else tensor for leaf, tensor in there.items()}
        made: Made = {}
        leaves = [found[leaf] if isinstance(leaf, GraphResult) else copied(leaf, self.anew, made) for leaf in every]
        own = len(self.returned.leaves)
        returned = pytree.tree_unflatten(leaves[:own], self.returned.structure)
        return returned, pytree.tree_unflatten(leaves[own:], outside.structure)


@dataclass(frozen=True, eq=False)
class Given:
    """A captured step, and the tensors that a call brings for it: those that own its input storages, by their names."""

    captured: Captured
    tensors: Mapping[str, Tensor]

    @cached_property
    def storages(self) -> Mapping[str, torch.UntypedStorage]:
        """The storages that the graph's offsets count from, by name."""
        return {name: self.captured.storage_of(name, tensor) for name, tensor in self.tensors.items()}

    @cached_property
    def shared(self) -> frozenset[str]:
        """The input storages that are one for this call: views of one tensor among the arguments."""
        names: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            names.setdefault(place(tensor), []).append(name)
        return frozenset(name for found in names.values() if len(found) > 1 for name in found)
