"""How does a traced step become a `Graph`? Node by node, with an eye on storages.

A traced node is in one of four cases:

    a host scalar (a learning rate, arithmetic on a step counter)   an op on a storage of 0 bytes
    all its tensors lie in known storages, nothing is written       no op: it is a view, that is a `Value`
    it writes a known storage (relu_, addcmul_, running statistics) an op that makes the next version
    anything else                                                   an op that brings new storages into being

A node stands for a geometry in a storage, and for another one once its `.data` is set. Whoever reads it gets the value
of that geometry at the version that the storage has then, so a view taken before a write sees the write, as in eager.
Writes are read off the operator's schema and `operators.effects`; operators that draw random numbers write the storage
"generator", and so do those that return nothing (`frontends.tracing.checks`). Ops are kept in the traced order. An op
is dropped if nothing that outlives the step depends on it.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.arguments import written_arguments
from outgrow.frontends.tracing.checks import checks
from outgrow.frontends.tracing.guesses import is_guess
from outgrow.frontends.tracing.names import Named, operator_name, symbol_name
from outgrow.frontends.tracing.once import may_vary
from outgrow.frontends.user.training.set_data import rebound
from outgrow.frontends.user.training.sharing import address
from outgrow.ir.flight import ARRIVED
from outgrow.ir.graph import Argument, Graph, Op, Ref, Role, Storage, Symbol, Value
from outgrow.operators.effects import hidden_writes
from outgrow.runtime.results import results_of

GENERATOR = "generator"
_SCALAR_DTYPES = {torch.SymFloat: "float", torch.SymInt: "int", torch.SymBool: "bool"}
_SCALAR_DTYPES |= {float: "float", int: "int", bool: "bool"}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A graph in the making. Tensors that are handed in must stay alive until `graph` is called."""

    born_roles: Mapping[int, Role]
    """The role of storages that the step makes and that outlive it or hold gradients, by address."""
    storages: dict[str, Storage] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    devices: dict[str, torch.device] = field(default_factory=dict)
    checks: set[str] = field(default_factory=set)
    guesses: set[str] = field(default_factory=set)
    varying: set[str] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)
    _meant: dict[fx.Node, Value] = field(default_factory=dict)
    _known: dict[Value, str] = field(default_factory=dict)

    def has(self, tensor: Tensor) -> bool:
        """Whether the storage of `tensor` is known."""
        return address(tensor) in self._names

    def storage_of(self, tensor: Tensor) -> str:
        """Return the name of the storage of `tensor`, which is known."""
        return self._names[address(tensor)]

    def add_input(self, name: str, role: Role, tensor: Tensor) -> None:
        """Declare the storage of `tensor`, which is there when the step begins."""
        self._add_storage(name, role, tensor)
        self.inputs.add(name)
        self._value_at_present(self._geometry(name, tensor))

    def add_scalar_input(self, node: fx.Node, name: str) -> None:
        """Declare a host scalar that is there when the step begins."""
        self.inputs.add(self._add_scalar(node, name))

    def bind(self, node: fx.Node, tensor: Tensor, name: str = "") -> None:
        """Let `node` mean `tensor`, whose storage is known; its values are called `name`."""
        self._meant[node] = self._geometry(name or node.name, tensor)

    def read(self, node: fx.Node) -> str:
        """Return the name of the value that `node` means at this point of the step."""
        if node not in self._meant:
            raise Uncapturable(f"the step uses {node.format_node()}, which is neither a tensor nor a number")
        return self._value_at_present(self._meant[node])

    def convert(self, node: fx.Node) -> None:
        """Append what `node` does; nothing for a view."""
        found = node.meta.get("val")
        if node.target is rebound:
            tensor, content = node.all_input_nodes
            self._meant[tensor] = self._meant[content]
            return
        if node.target is operator.getitem:
            if isinstance(found, Tensor):
                self.bind(node, found)
            return
        outputs = results_of(found)
        tensors = [item for item in outputs if isinstance(item, Tensor)]
        arguments = tuple(self._argument(item) for item in node.args)
        keywords = tuple((key, self._argument(item)) for key, item in node.kwargs.items())
        written = dict.fromkeys((*(self._meant[item].storage for item in written_nodes(node)), *self._in_turn(node)))
        if written or not tensors or not all(map(self.has, tensors)):
            for storage in written:
                self.versions[storage] += 1
            results = () if found is None else tuple(self._result(node, at, written) for at in range(len(outputs)))
            covered = {self.values[name].storage for name in results if name is not None}
            writes = tuple(storage for storage in written if storage not in covered)
            assert callable(node.target), "a call has a function"
            self.ops.append(Op(node.name, operator_name(node.target), arguments, keywords, results, writes))
        if checks(node):
            self.checks.add(node.name)
        if is_guess(node):
            self.guesses.add(node.name)
        if may_vary(node):
            self.varying.add(node.name)
        if isinstance(found, Tensor):
            self.bind(node, found)

    def graph(self, results: Sequence[str]) -> Graph:
        """Return the graph with these results, without what nothing depends on."""
        ops = self._needed_ops(results)
        used = {name for op in ops for name in _mentioned(op)} | set(results)
        values = {n: v for n, v in self.values.items() if n in used or (v.storage in self.inputs and not v.version)}
        storages = {values[name].storage for name in values} | {GENERATOR} | self.inputs
        kept = {name: storage for name, storage in self.storages.items() if name in storages}
        return Graph(kept, values, tuple(ops), tuple(results))

    def _needed_ops(self, results: Sequence[str]) -> list[Op]:
        """Keep ops that write what is there before the step, draw random numbers, check, or lead to such an op.

        Ops that end an exchange are kept too, even if this worker wants nothing from it.
        """
        needed = {self.values[name].storage for name in results} | self.inputs | {GENERATOR}
        kept: list[Op] = []
        for op in reversed(self.ops):
            written = {self.values[name].storage for name in op.results if name is not None}
            is_kept = op.operator == ARRIVED or op.name in self.checks
            if is_kept or not needed.isdisjoint(written.union(op.writes)):
                kept.append(op)
                needed |= {self.values[name].storage for name in _mentioned(op)}
        return kept[::-1]

    def _in_turn(self, node: fx.Node) -> Iterator[str]:
        """Yield the generator if `node` draws random numbers, or is a check that draws wait for."""
        if keeps_its_turn(node):
            if GENERATOR not in self.storages:
                self.storages[GENERATOR] = Storage(GENERATOR, 0, Role.GENERATOR)
                self.versions[GENERATOR] = 0
            yield GENERATOR

    def _result(self, node: fx.Node, at: int, written: Mapping[str, None]) -> str | None:
        """Return the name of the value that output number `at` defines; None for a view."""
        found = node.meta["val"]
        several = isinstance(found, (tuple, list))
        output, name = (found[at], f"{node.name}.{at}") if several else (found, node.name)
        if isinstance(output, Tensor):
            if not self.has(output):
                self._add_storage(name, self.born_roles.get(address(output), Role.ACTIVATION), output)
            elif self.storage_of(output) not in written:
                return None
            return self._value_at_present(self._geometry(name, output))
        if type(output) in _SCALAR_DTYPES:
            return None if several else self._add_scalar(node, name)
        if output is None:
            return None
        raise Uncapturable(f"{node.target} returns a {type(output).__name__}, which no plan can hold")

    def _add_storage(self, name: str, role: Role, tensor: Tensor) -> None:
        assert name not in self.storages, f"storage {name} has one name"
        self.storages[name] = Storage(name, tensor.untyped_storage().nbytes(), role)
        self.devices[name] = tensor.device
        self.versions[name] = 0
        self._names[address(tensor)] = name

    def _add_scalar(self, node: fx.Node, name: str) -> str:
        self.storages[name] = Storage(name, 0, Role.SCALAR)
        self.versions[name] = 0
        self._meant[node] = Value(name, name, 0, _SCALAR_DTYPES[type(node.meta["val"])], (), ())
        return self._value_at_present(self._meant[node])

    def _geometry(self, name: str, tensor: Tensor) -> Value:
        """Return what `tensor` means, at no particular version."""
        storage = self.storage_of(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Value(name, storage, 0, dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    def _value_at_present(self, meant: Value) -> str:
        """Return the name of the value of this geometry at the present version; make it if there is none."""
        version = self.versions[meant.storage]
        key = replace(meant, name="", version=version)
        if key not in self._known:
            name = meant.name if meant.name not in self.values else f"{meant.name}$v{version}"
            self._known[key] = name
            self.values[name] = replace(key, name=name)
        return self._known[key]

    def _argument(self, item: object) -> Argument:
        match item:
            case fx.Node():
                return Ref(self.read(item))
            case tuple() | list():
                return tuple(self._argument(part) for part in item)
            case None | bool() | int() | float() | complex() | str():
                return item
            case _ if isinstance(item, Named):
                return Symbol(symbol_name(item))
            case _:
                raise Uncapturable(
                    f"the step passes a {type(item).__name__} to an operator, which no plan can hold; "
                    "leave it out (random numbers: use the default generator) or do this outside of the step"
                )


def written_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the operands that a call writes, by its schema or by the table of hidden writes."""
    if not isinstance(node.target, OpOverload):
        return
    hidden = [node.args[at] for at in hidden_writes(operator_name(node.target), node.args)]
    for target in (*hidden, *written_arguments(node.target, node.args, node.kwargs)):
        for item in target if isinstance(target, (tuple, list)) else (target,):
            if isinstance(item, fx.Node):
                yield item


def draws(node: fx.Node) -> bool:
    """Whether `node` draws random numbers; attention whose dropout is 0 does not, though it is tagged so."""
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    for at, parameter in enumerate(node.target._schema.arguments):
        if parameter.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(given != 0.0)
    return True


def keeps_its_turn(node: fx.Node) -> bool:
    """Whether `node` must keep its order with others of its kind though they share no tensor."""
    return draws(node) or (checks(node) and not is_guess(node))


def _mentioned(op: Op) -> set[str]:
    """The values that an op reads or defines."""
    return {*op.operands, *(name for name in op.results if name is not None)}
