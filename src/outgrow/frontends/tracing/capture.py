"""How does a training step, as the user wrote it, become a graph?

    step --trace--> nodes on fake tensors --convert--> Graph, where its inputs come from, where its results go

The step is run once without contents (`frontends.tracing.trace`); its nodes become ops on storages
(`frontends.tracing.convert`). A `Captured` step is the graph together with the slots (`frontends.user.state`) from
which each input storage is fetched at a call, the hyper-parameters that feed its host scalars, and the slots into
which results are put. It serves every call with the same `frontends.tracing.signature` whose hyper-parameters keep
the guards.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from outgrow.analysis.updates import written_before_updates
from outgrow.errors import Uncapturable
from outgrow.frontends.fake.counters import Counted
from outgrow.frontends.fake.questions import Question, first_changed
from outgrow.frontends.tracing.convert import Conversion
from outgrow.frontends.tracing.found import Found
from outgrow.frontends.tracing.trace import Leaf, Traced, trace
from outgrow.frontends.user.attributes import (
    Contents,
    Left,
    Overwritten,
    Read,
    Settled,
    next_step,
    overwritten_by,
)
from outgrow.frontends.user.devices import CPU, device_of, elsewhere_of
from outgrow.frontends.user.drawn import living_generators
from outgrow.frontends.user.escapes import check_nothing_is_kept, older_objects_apart, taken_out_on_failure
from outgrow.frontends.user.guards import Guards, asked, guards
from outgrow.frontends.user.outside import Changed, Filled, Outside
from outgrow.frontends.user.refusals import NOT_HELD
from outgrow.frontends.user.sharing import address
from outgrow.frontends.user.state import (
    BatchSlot,
    BufferSlot,
    ConstantSlot,
    GradientSlot,
    GroupSlot,
    OptimizerSlot,
    ParameterSlot,
    Slot,
    Spread,
    StateSlot,
    Training,
    local,
    read,
    state_tensors,
    storage_name,
    title,
)
from outgrow.ir.graph import Graph, Role

_ROLES: Mapping[type[Slot], Role] = {
    ParameterSlot: Role.PARAMETER,
    BufferSlot: Role.BUFFER,
    GradientSlot: Role.GRADIENT,
    OptimizerSlot: Role.OPTIMIZER,
    GroupSlot: Role.OPTIMIZER,
    BatchSlot: Role.INPUT,
    ConstantSlot: Role.INPUT,
}


@dataclass(frozen=True, slots=True)
class Input:
    """The tensor in `slot` owns the storage.

    Offsets of values count from the first byte of that tensor's storage; for a batch slot from the tensor's
    own first byte, so that a batch may be a slice of something larger.
    """

    storage: str
    slot: Slot


@dataclass(frozen=True, slots=True)
class Hyper:
    """The float in `slot` is the scalar `value` of the graph; it was `captured` when the step was traced."""

    value: str
    slot: GroupSlot
    captured: float


@dataclass(frozen=True, slots=True)
class Put:
    """After the step, result number `result` hangs in `slot`; if it is None, the slot is empty.

    `number` is its content, if it is one number that is the same in every call: a counter that begins.
    """

    slot: StateSlot
    result: int | None
    number: float | None = None


@dataclass(frozen=True, slots=True)
class GraphResult:
    """The result of the graph of this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Returned:
    """What the step returns: each leaf is a `GraphResult` or a constant."""

    structure: pytree.TreeSpec
    leaves: tuple[object, ...]


@dataclass(frozen=True)
class Captured:
    """A training step as a graph, and how it is fed and what becomes of its results.

    Results of the graph that no `Put` and no leaf of `returned` names are gradients that were there before the step.
    `stale` gradients are replaced unread, as in a step that begins with `zero_grad`: they are not inputs, and can go
    when the step begins. `schedulers` make a step of their own after every call; what is `settled` is set in attributes
    before, and what is `overwritten` there cannot be read from then on. It serves while what is `outside` is what it
    was, and the tensors that it has `found` there lie as they lay; what it has `changed` there is changed after every
    call. `guards` are conditions on the hyper-parameters, followed by the `counters`, and to `questions` about the
    batch the answers must be the same. Tensors with `spreads` are spread over a mesh, and this process has its part of
    them. The step runs on `device`; if that is not the host, storages `elsewhere` are small ones of the host, which
    stay there.
    """

    graph: Graph
    inputs: tuple[Input, ...]
    hyper: tuple[Hyper, ...]
    puts: tuple[Put, ...]
    stale: tuple[GradientSlot, ...]
    returned: Returned
    guards: Guards
    constants: tuple[Tensor, ...]
    found: tuple[Found, ...] = ()
    schedulers: tuple[LRScheduler, ...] = ()
    settled: tuple[Settled | Contents, ...] = ()
    overwritten: tuple[Overwritten, ...] = ()
    outside: Outside = field(default_factory=Outside)
    changed: tuple[Changed | Filled, ...] = ()
    counters: tuple[Counted, ...] = ()
    questions: tuple[Question, ...] = ()
    spreads: Mapping[StateSlot, Spread] = field(default_factory=dict[StateSlot, Spread])
    device: torch.device = CPU
    elsewhere: frozenset[str] = frozenset()

    @cached_property
    def slots(self) -> dict[str, Slot]:
        """The slot of the tensor that owns each input storage."""
        return {item.storage: item.slot for item in self.inputs}

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The storages of inputs that the step writes."""
        written = frozenset(name for names in self.graph.written_at for name in names)
        return tuple(name for name in self.slots if name in written)

    @cached_property
    def written_forward(self) -> tuple[str, ...]:
        """Those of buffers, and of tensors found outside, that it may write before an update: in its forward pass."""
        early = written_before_updates(self.graph)
        kinds = (BufferSlot, ConstantSlot)
        return tuple(name for name in self.written if name in early and isinstance(self.slots[name], kinds))

    @cached_property
    def copied_bytes(self) -> int:
        """What copies of `written_forward` take, to put them back if the step fails before an update."""
        return sum(self.graph.storages[name].size_bytes for name in self.written_forward)

    def guards_hold(self, training: Training) -> bool:
        """Whether the step, traced anew with hyper-parameters and counters as they are now, would be this graph."""
        if not self._is_in_place(training):
            return False
        seen = [counter.seen(number) for counter, number in self._counted(training)]
        numbers = [number for number in seen if number is not None]
        return len(numbers) == len(seen) and self.guards.hold([*self.hyper_values(training), *numbers])

    def answered_otherwise(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Question | None:
        """Return what the step has asked of its batch and would find otherwise in this one."""
        if not self.questions:  # which most steps have none of
            return None
        return first_changed(self.questions, pytree.tree_leaves((tuple(args), dict(kwargs))))

    @cached_property
    def _written_outside(self) -> frozenset[int]:
        """The memory of tensors found outside that the step writes, by address."""
        slots = (self.slots[name] for name in self.written)
        return frozenset(address(self.constants[slot.index]) for slot in slots if isinstance(slot, ConstantSlot))

    def is_apart(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether no argument shares memory with a tensor found outside that the step writes."""
        if not self._written_outside:
            return True
        given = (leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, Tensor))
        return self._written_outside.isdisjoint(map(address, given))

    def _is_in_place(self, training: Training) -> bool:
        """Whether what hangs in slots is spread as it was when the step was captured."""
        there = state_tensors(training) if self.spreads else {}
        pairs = ((there.get(slot), spread) for slot, spread in self.spreads.items())
        return all(Spread.of(tensor) == spread for tensor, spread in pairs if isinstance(tensor, DTensor))

    def _counted(self, training: Training) -> Iterator[tuple[Counted, float]]:
        """Yield the counters that the step looks at, and what they are now."""
        for counter in self.counters:
            tensor = read(counter.slot, training)
            assert isinstance(tensor, Tensor), "the signature says that it is a tensor"
            yield counter, float(tensor.item())

    def hyper_values(self, training: Training) -> list[float]:
        """Return the hyper-parameters as they are now, in the order of `hyper`."""
        values = [read(hyper.slot, training) for hyper in self.hyper]
        assert all(isinstance(value, float) for value in values), "the signature says that they are floats"
        return [float(value) for value in values if value is not None]

    def tensors(self, training: Training, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Tensor]:
        """Return, for each input storage, the tensor that owns it at this call."""
        leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
        found: dict[str, Tensor] = {}
        for item in self.inputs:
            match item.slot:
                case BatchSlot(leaf):
                    tensor = leaves[leaf]
                case ConstantSlot(index):
                    tensor = self.constants[index]
                case _:
                    tensor = read(item.slot, training)
            assert isinstance(tensor, Tensor), f"the signature says that {item.slot} holds a tensor"
            found[item.storage] = local(tensor)
        return found

    def unflatten(self, results: Sequence[object]) -> object:
        """Return what the step returns, made of the graph's results: tensors, and floats for host scalars."""
        leaves = [results[leaf.number] if isinstance(leaf, GraphResult) else leaf for leaf in self.returned.leaves]
        return pytree.tree_unflatten(leaves, self.returned.structure)


def capture(
    step: Callable[..., object],
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
) -> Captured:
    """Capture one call of `step` as a graph. Nothing of the step's size is computed or allocated, and no state changes.

    Three exceptions: what is made of literals alone is computed (`frontends.fake.literals`: 16 MiB of larger ones at
    most), a recurrent layer, or a cuDNN batch normalisation, runs once on memory without contents, to see how much its
    kernel keeps (`frontends.fake.reserves`), and a `GradScaler` is given its tensors, as its first use does.

    Raises `Uncapturable`, naming the user's line, where the step looks at the contents of tensors, and where
    it does something that a graph could not repeat. An error of the step itself is raised as it is.
    """
    training, leaves = Training(tuple(models), tuple(optimizers)), pytree.tree_leaves((tuple(args), dict(kwargs or {})))

    def traced_anew(living: Sequence[object]) -> Traced:
        return trace(step, training, args, kwargs or {}, living)

    return captured_by(step, traced_anew, lambda traced: captured_from(traced, leaves))


def captured_by(
    step: Callable[..., object],
    traced_anew: Callable[[Sequence[object]], Traced],
    assembled: Callable[[Traced], Captured],
) -> Captured:
    """Return what is `assembled` of a trace of `step`, once nothing without contents is kept, and nothing left is read.

    `traced_anew` traces the step, given the generators of random numbers that there are: a second time if the step
    leaves values in attributes.

    Raises `Uncapturable` as `capture` does.
    """
    living = living_generators()  # the collector looks past them in the block
    with older_objects_apart():
        return _captured_by(step, partial(traced_anew, living), assembled)


def _captured_by(
    step: Callable[..., object], traced_anew: Callable[[], Traced], assembled: Callable[[Traced], Captured]
) -> Captured:
    traced = traced_anew()
    mode, environment, left = traced.mode, traced.shape_env, traced.left
    with taken_out_on_failure(mode, environment, traced.outside):
        captured = assembled(traced)
        del traced
        if mode is not None:
            check_nothing_is_kept(mode, environment, step)
        captured = replace(captured, outside=captured.outside.let_go())
    if not left:
        return captured

    def trace_next(settled: Sequence[Settled | Contents], not_to_read: Sequence[Left]) -> None:
        with next_step(settled, not_to_read) as check_unmoved:
            check_unmoved(traced_anew().settled)

    owners = {id(item.owner) for item in left}
    apart = tuple(item for item in captured.settled if id(item.owner) not in owners)
    if len(apart) < len(captured.settled):
        try:
            trace_next(captured.settled, left)
        except Read:
            captured = replace(captured, settled=apart)
    state = [item for item in left if item.depend]
    if state:
        try:
            trace_next(captured.settled, state)
        except Read as refusal:
            raise Uncapturable(str(refusal)) from refusal
    return replace(captured, overwritten=overwritten_by(left))


def captured_from(traced: Traced, leaves: Sequence[object]) -> Captured:
    """Return a traced step as a graph; `leaves` are those of the arguments with which it was traced."""
    return _Assembly(traced, leaves).captured()


class _Assembly:
    """Goes through a trace once: inputs, calls, results."""

    def __init__(self, traced: Traced, leaves: Sequence[object]) -> None:
        self.traced = traced
        self.leaves = leaves
        self.conversion = Conversion(_born_roles(traced))
        self.inputs: list[Input] = []
        self.constants: list[Tensor] = []
        self.found: list[Found] = []
        self.outputs: tuple[object, ...] = ()

    def captured(self) -> Captured:
        """Convert every node and return the whole."""
        placeholders = iter(self.traced.module.graph.find_nodes(op="placeholder"))
        for slot, tensor in self.traced.tensors.items():
            self._bind(next(placeholders), slot, tensor)
        names = {slot: storage_name(slot) for slot in self.traced.hyper}
        for name in names.values():
            self.conversion.add_scalar_input(next(placeholders), name)
        for node in self.traced.module.graph.nodes:
            self._visit(node)
        self._check_batch()
        results, numbers = self._results()
        values, puts = self.traced.hyper, self._puts(numbers)
        counters = asked(self.traced.shape_env, self.traced.counters)
        assumed = tuple(values.values()) + tuple(number for _, number in counters.values())
        graph, stale = _without_stale(self.conversion.graph(results), self.inputs, puts)
        device = device_of(device for name, device in self.conversion.devices.items() if name in self.conversion.inputs)
        return Captured(
            graph=graph,
            inputs=tuple(item for item in self.inputs if item.storage in graph.storages),
            hyper=tuple(Hyper(name, slot, values[slot]) for slot, name in names.items()),
            puts=puts,
            stale=stale,
            returned=self._returned(numbers),
            guards=guards(self.traced.shape_env, (*self.traced.symbols, *counters), assumed),
            constants=tuple(self.constants),
            found=tuple(self.found),
            schedulers=self.traced.schedulers,
            settled=self.traced.settled,
            outside=self.traced.outside,
            changed=self.traced.changed,
            counters=tuple(counter for counter, _ in counters.values()),
            questions=self.traced.questions,
            device=device,
            elsewhere=elsewhere_of(self.conversion.devices, device, graph),
        )

    def _bind(self, node: fx.Node, slot: Slot, tensor: Tensor) -> None:
        name = storage_name(slot)
        if not self.conversion.has(tensor):
            self.conversion.add_input(name, _ROLES[type(slot)], tensor)
            self.inputs.append(Input(name, slot))
        self.conversion.bind(node, tensor, name)

    def _visit(self, node: fx.Node) -> None:
        match node.op:
            case "get_attr":
                self._bind_constant(node)
            case "call_function":
                if not (isinstance(node.target, OpOverload) and node.target.namespace == "profiler"):
                    self.conversion.convert(node)
            case "output":
                (outputs,) = node.args
                assert isinstance(outputs, Iterable), "the outputs of a trace are a list"
                self.outputs = tuple(outputs)
            case _:
                assert node.op == "placeholder", f"make_fx leaves no {node.op} nodes"

    def _bind_constant(self, node: fx.Node) -> None:
        assert isinstance(node.target, str), "a constant has a name"
        tensor = getattr(self.traced.module, node.target)
        if not isinstance(tensor, Tensor):
            raise Uncapturable(f"the step gives an operator a {type(tensor).__name__}, {NOT_HELD}")
        slot = ConstantSlot(len(self.constants))
        if not self.conversion.has(tensor):
            self.constants.append(self.traced.originals.get(id(tensor), tensor))
        self._bind(node, slot, tensor)
        original = self.traced.originals.get(id(tensor))
        if original is not None:
            self.found.append(Found.of(original, self.conversion.storage_of(tensor)))

    def _check_batch(self) -> None:
        """Refuse a write to memory that an argument shares with something else: in the graph they are separate."""
        owners = Counter(address(leaf) for leaf in self.leaves if isinstance(leaf, Tensor))
        written = self._written_state()
        for at, leaf in enumerate(self.leaves):
            what = written.get(address(leaf)) if isinstance(leaf, Tensor) else None
            if what is not None:
                raise Uncapturable(
                    f"argument number {at} of the step shares memory with {what}, which the step writes; clone it "
                    "before the step"
                )
        for item in self.inputs:
            if not (isinstance(item.slot, BatchSlot) and self.conversion.versions[item.storage]):
                continue
            leaf = self.leaves[item.slot.leaf]
            if isinstance(leaf, Tensor) and owners[address(leaf)] > 1:
                raise Uncapturable(
                    f"the step writes to its argument number {item.slot.leaf}, which shares memory with another; "
                    "clone it before the step"
                )

    def _written_state(self) -> dict[int, str]:
        """Return by address what models and optimizers hold, or the step finds outside, and the step writes."""
        found: dict[int, str] = {}
        for item in self.inputs:
            if isinstance(item.slot, BatchSlot) or not self.conversion.versions[item.storage]:
                continue
            if isinstance(item.slot, ConstantSlot):
                found[address(self.constants[item.slot.index])] = "a tensor that it finds outside"
                continue
            real = self.traced.originals.get(id(self.traced.tensors[item.slot]))
            if real is not None and not isinstance(real, DTensor):
                found[address(real)] = title(item.slot)
        return found

    def _results(self) -> tuple[list[str], dict[int, int]]:
        """Return the names of the graph's results, and the number of the result that each output is."""
        numbers: dict[int, int] = {}
        results: dict[str, int] = {}
        for at, output in enumerate(self.outputs):
            if isinstance(output, fx.Node):
                numbers[at] = results.setdefault(self.conversion.read(output), len(results))
        return list(results), numbers

    def _puts(self, numbers: Mapping[int, int]) -> tuple[Put, ...]:
        outputs = enumerate(self.traced.outputs)
        begun = self.traced.begun
        slots = [(at, slot) for at, slot in outputs if slot is not None and not isinstance(slot, Leaf)]
        puts = [Put(slot, numbers[at], begun.get(slot)) for at, slot in slots]
        return (*puts, *(Put(slot, None) for slot in self.traced.emptied))

    def _returned(self, numbers: Mapping[int, int]) -> Returned:
        leaves = list(self.traced.returned)
        for at, output in enumerate(self.traced.outputs):
            if isinstance(output, Leaf):
                leaves[output.index] = GraphResult(numbers[at]) if at in numbers else self.outputs[at]
        return Returned(self.traced.structure, tuple(leaves))


def _without_stale(
    graph: Graph, inputs: Sequence[Input], puts: Sequence[Put]
) -> tuple[Graph, tuple[GradientSlot, ...]]:
    """Return the graph without the gradients that it replaces unread, and their slots.

    Those that it reads are results: somebody else may hold the tensors, so they stay to the end of the step.
    """
    replaced, needed = {put.slot for put in puts}, graph.used | graph.kept
    slots = {item.storage: item.slot for item in inputs if isinstance(item.slot, GradientSlot)}
    stale = {name: slot for name, slot in slots.items() if slot in replaced and name not in needed}
    storages = {name: storage for name, storage in graph.storages.items() if name not in stale}
    values = {name: value for name, value in graph.values.items() if value.storage not in stale}
    last = {value.storage: value.name for value in sorted(values.values(), key=lambda value: value.version)}
    held = [last[name] for name in slots if name not in stale and name not in graph.kept]
    return replace(graph, storages=storages, values=values, results=(*graph.results, *held)), tuple(stale.values())


def _born_roles(traced: Traced) -> dict[int, Role]:
    """Return the role of storages that the step makes, by address; the others are activations."""
    roles = {address(gradient): Role.GRADIENT for gradient in traced.gradients}
    return roles | {address(tensor): _ROLES[type(slot)] for slot, tensor in traced.born.items()}
