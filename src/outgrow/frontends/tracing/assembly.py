"""How do the nodes of a trace become a captured step? In one pass: inputs, calls, results."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import Tensor, fx
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.captured import Captured, Found, GraphResult, Put, Returned
from outgrow.frontends.tracing.checks import checks_in_turn
from outgrow.frontends.tracing.convert import Conversion
from outgrow.frontends.tracing.guesses import guesses_first
from outgrow.frontends.tracing.leaf import Leaf
from outgrow.frontends.tracing.once import once
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.refusals import NOT_HELD
from outgrow.frontends.user.training.devices import device_of, elsewhere_of
from outgrow.frontends.user.training.guards import asked, guards
from outgrow.frontends.user.training.sharing import address, overlap
from outgrow.frontends.user.training.state import (
    BatchSlot,
    BufferSlot,
    ConstantSlot,
    GradientSlot,
    GroupSlot,
    OptimizerSlot,
    ParameterSlot,
    Slot,
    StateSlot,
    storage_name,
    title,
    title_of_argument,
)
from outgrow.ir.graph import Graph, Role, Value
from outgrow.remarks import remark

_ROLES: Mapping[type[Slot], Role] = {
    ParameterSlot: Role.PARAMETER,
    BufferSlot: Role.BUFFER,
    GradientSlot: Role.GRADIENT,
    OptimizerSlot: Role.OPTIMIZER,
    GroupSlot: Role.OPTIMIZER,
    BatchSlot: Role.INPUT,
    ConstantSlot: Role.INPUT,
}


_HELD = (
    "{}: the step decides by what it computes while the gradients of the step before are still there, so they stay in "
    "memory to its end. Call optimizer.zero_grad() before it decides."
)


def captured_from(traced: Traced, leaves: Sequence[object]) -> Captured:
    """Return a traced step as a graph; `leaves` are those of the arguments with which it was traced."""
    return _Assembly(traced, leaves).captured()


class _Assembly:
    """Goes through a trace once: inputs, calls, results."""

    def __init__(self, traced: Traced, leaves: Sequence[object]) -> None:
        self.traced = traced
        self.leaves = leaves
        self.conversion = Conversion(_born_roles(traced))
        self.slots: dict[str, Slot] = {}
        self.gradients: dict[str, fx.Node] = {}
        self.constants: list[Tensor] = []
        self.found: list[Found] = []
        self.outputs: tuple[object, ...] = ()

    def captured(self) -> Captured:
        """Convert every node and return the whole."""
        placeholders = iter(self.traced.module.graph.find_nodes(op="placeholder"))
        for slot, tensor in self.traced.tensors.items():
            self._bind(next(placeholders), slot, tensor)
        hyper = {storage_name(slot): slot for slot in self.traced.hyper}
        for name in hyper:
            self.conversion.add_scalar_input(next(placeholders), name)
        for node in self.traced.module.graph.nodes:
            self._visit(node)
        self._check_batch()
        results, numbers = self._results()
        puts = self._puts(numbers)
        counters = asked(self.traced.shape_env, self.traced.counters)
        assumed = (*self.traced.hyper.values(), *(number for _, number in counters.values()))
        ends = {name: self.conversion.values[self.conversion.read(node)] for name, node in self.gradients.items()}
        graph, stale = _without_stale(self._in_turn(results), self.slots, puts, ends, self.traced.held)
        _remark_held(self.traced, puts)
        device = device_of(device for name, device in self.conversion.devices.items() if name in self.conversion.inputs)
        returned, results_outside = self._returned(numbers)
        return Captured(
            graph=graph,
            slots={name: slot for name, slot in self.slots.items() if name in graph.storages},
            hyper=hyper,
            puts=puts,
            stale=stale,
            returned=returned,
            results=results_outside,
            guards=guards(self.traced.shape_env, (*self.traced.symbols, *counters), assumed),
            constants=tuple(self.constants),
            found=tuple(self.found),
            schedulers=self.traced.schedulers,
            flags=self.traced.flags,
            settled=self.traced.settled,
            outside=self.traced.outside,
            changed=self.traced.changed,
            gathered=self.traced.gathered,
            counters=tuple(counter for counter, _ in counters.values()),
            questions=self.traced.questions,
            guesses=self.traced.guesses,
            device=device,
            elsewhere=elsewhere_of(self.conversion.devices, device, graph),
            numbers=self.traced.numbers.known,
        )

    def _in_turn(self, results: Sequence[str]) -> Graph:
        """Return the graph with these results: guesses are first, and what checks is in its turn with what changes.

        What may give other bits runs once.
        """
        made, guesses = self.conversion, self.traced.guesses
        put_back = [name for name, slot in self.slots.items() if isinstance(slot, ConstantSlot)]
        graph = once(guesses_first(made.graph(results), made.guesses, guesses, put_back), made.varying)
        return checks_in_turn(graph, made.checks, guesses=bool(guesses))

    def _bind(self, node: fx.Node, slot: Slot, tensor: Tensor) -> None:
        name = storage_name(slot)
        if not self.conversion.has(tensor):
            self.conversion.add_input(name, _ROLES[type(slot)], tensor)
            self.slots[name] = slot
            if isinstance(slot, GradientSlot):
                self.gradients[name] = node
        self.conversion.bind(node, tensor, name)

    def _visit(self, node: fx.Node) -> None:
        match node.op:
            case "get_attr":
                self._bind_constant(node)
            case "call_function":
                if not _is_of_profiler(node):
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
        if any(map(_is_of_profiler, node.users)):
            raise Uncapturable(
                "the step ends what a profiler has begun before it; call the step() of a profiler after this one, and "
                "leave a record_function where it was entered"
            )
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
        held = self._state.items()
        written = {address(real): what for name, (real, what) in held if self.conversion.versions[name]}
        for at, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and address(leaf) in written:
                raise Uncapturable(
                    f"{title_of_argument(at, leaf)} shares memory with {written[address(leaf)]}, which the step "
                    "writes; clone it before the step"
                )
        for name, slot in self.slots.items():
            if not (isinstance(slot, BatchSlot) and self.conversion.versions[name]):
                continue
            leaf = self.leaves[slot.leaf]
            assert isinstance(leaf, Tensor), "only a tensor has a storage"
            others = [(item, "another") for at, item in enumerate(self.leaves) if at != slot.leaf]
            shared = [what for item, what in (*others, *self._state.values()) if overlap(leaf, item)]
            if shared:
                raise Uncapturable(
                    f"the step writes to {title_of_argument(slot.leaf, leaf)}, which shares memory with {shared[0]}; "
                    "clone it before the step"
                )

    @cached_property
    def _state(self) -> dict[str, tuple[Tensor, str]]:
        """What models and optimizers hold, or the step finds outside, by storage, and what each is called."""
        found: dict[str, tuple[Tensor, str]] = {}
        for name, slot in self.slots.items():
            if isinstance(slot, ConstantSlot):
                found[name] = (self.constants[slot.index], "a tensor that it finds outside")
            elif not isinstance(slot, BatchSlot):
                real = self.traced.originals.get(id(self.traced.tensors[slot]))
                if real is not None and not isinstance(real, DTensor):
                    found[name] = (real, title(slot))
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
        rebound = self.traced.rebound
        puts = [Put(slot, numbers[at], begun.get(slot), is_data=slot in rebound) for at, slot in slots]
        puts += [Put(slot, None, number) for slot, number in self.traced.numbers.placed.items()]
        return (*puts, *(Put(slot, None) for slot in self.traced.emptied))

    def _returned(self, numbers: Mapping[int, int]) -> tuple[Returned, Returned | None]:
        """Return what the step returns, and what it leaves where it has gathered."""
        leaves = list(self.traced.returned)
        for at, output in enumerate(self.traced.outputs):
            if isinstance(output, Leaf):
                leaves[output.index] = GraphResult(numbers[at], output.kind) if at in numbers else self.outputs[at]
        structure, others = self.traced.structure, self.traced.structure_of_gathered
        own = structure.num_leaves
        gathered = None if others is None else Returned(others, tuple(leaves[own:]))
        return Returned(structure, tuple(leaves[:own])), gathered


def _is_of_profiler(node: fx.Node) -> bool:
    """Whether a call only begins or ends a range that a profiler shows."""
    return isinstance(node.target, OpOverload) and node.target.namespace == "profiler"


def _without_stale(
    graph: Graph,
    inputs: Mapping[str, Slot],
    puts: Sequence[Put],
    ends: Mapping[str, Value],
    held: Collection[StateSlot],
) -> tuple[Graph, tuple[GradientSlot, ...]]:
    """Return the graph without the gradients that it replaces unread, and their slots.

    Those that it reads are results, as what they are at its `ends`: somebody else may hold the tensors, so they stay to
    the end of the step, as do those that are `held`. The last op that writes one may be an update of several tensors,
    which returns none of them.
    """
    replaced, needed = {put.slot for put in puts}, graph.used | graph.kept
    slots = {name: slot for name, slot in inputs.items() if isinstance(slot, GradientSlot)}
    going = replaced - set(held)
    stale = {name: slot for name, slot in slots.items() if slot in going and name not in needed}
    storages = {name: storage for name, storage in graph.storages.items() if name not in stale}
    values = {name: value for name, value in graph.values.items() if value.storage not in stale}
    ending = [ends[name] for name in slots if name not in stale and name not in graph.kept]
    values |= {value.name: value for value in ending}
    results = (*graph.results, *(value.name for value in ending))
    return replace(graph, storages=storages, values=values, results=results), tuple(stale.values())


def _remark_held(traced: Traced, puts: Sequence[Put]) -> None:
    """Say so if gradients stay for the whole step that could go when it begins, did it not decide before."""
    if traced.guesses and any(put.slot in traced.held for put in puts):
        remark(_HELD.format(traced.guesses[0].line))


def _born_roles(traced: Traced) -> dict[int, Role]:
    """Return the role of storages that the step makes, by address; the others are activations."""
    roles = {address(gradient): Role.GRADIENT for gradient in traced.gradients}
    made = (*traced.rebound.items(), *traced.born.items())
    return roles | {address(tensor): _ROLES[type(slot)] for slot, tensor in made}
