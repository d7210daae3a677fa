"""How does a traced step become calls on named tensors? Node by node, views included; see `operators.dataflow`.

`filled` is the way back, from an argument of such a call to what its operator takes.

What a worker has of a view is memory of its own if the view is cut otherwise than what it views. So a tensor that is
written while another view of the same memory is still to be read is whole, and so are all these views: then they share
memory on each worker as they do in the step itself.
"""

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from outgrow.frontends.fake.kernels.sums import seen_as_they_are
from outgrow.frontends.tracing.convert import written_nodes
from outgrow.frontends.tracing.leaf import Leaf
from outgrow.frontends.tracing.names import DETACHES, Named, completed, operator_name, resolve_symbol, symbol_name
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.training.sharing import address
from outgrow.frontends.user.training.state import BatchSlot, ParameterSlot, StateSlot, storage_name
from outgrow.frontends.workers.batch_norms import batch_norms_by_sums
from outgrow.frontends.workers.gathers import offer_gathers
from outgrow.ir.graph import Symbol
from outgrow.operators import dataflow
from outgrow.operators.dataflow import GATHERED, HOST, Dataflow, Node
from outgrow.operators.tdl import Argument, Operand, OperatorCall
from outgrow.runtime.results import results_of

_ATEN = torch.ops.aten
_VIEWS = {
    _ATEN.t_.default: _ATEN.t.default,
    _ATEN.transpose_.default: _ATEN.transpose.int,
    _ATEN.squeeze_.default: _ATEN.squeeze.default,
    _ATEN.squeeze_.dim: _ATEN.squeeze.dim,
    _ATEN.squeeze_.dims: _ATEN.squeeze.dims,
    _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default,
}
"""Operators that let a tensor be another view of its memory from then on, and those that make the view."""


def divisible_dataflow(traced: Traced) -> Dataflow:
    """Return the dataflow of a traced step, whose module becomes one that can be divided in more ways."""
    seen_as_they_are(traced.module)
    _view_out_of_place(traced.module)
    batch_norms_by_sums(traced)
    offer_gathers(traced)
    return dataflow_of(traced)


def _view_out_of_place(module: fx.GraphModule) -> None:
    """Let views that take the place of a tensor be tensors of their own, which are used from then on."""
    earlier = set[fx.Node]()
    for node in module.graph.nodes:
        if node.target in _VIEWS:
            node.target = _VIEWS[node.target]
            node.args[0].replace_all_uses_with(
                node, delete_user_cb=lambda user, node=node: user not in {*earlier, node}
            )
        earlier.add(node)


def put_back(traced: Traced, step: Dataflow) -> dict[StateSlot, str]:
    """Return the tensors that hang in slots after a step, by their slots."""
    slots = zip(traced.outputs, step.outputs, strict=True)
    return {slot: name for slot, name in slots if not isinstance(slot, Leaf | None) and name is not None}


def dataflow_of(traced: Traced) -> Dataflow:
    """Return the dataflow of a traced step: every call that has a tensor as operand or result."""
    return _Reading(traced).dataflow()


class _Reading:
    """Goes through the nodes of a trace once."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._names: dict[fx.Node, str] = {}
        self._outputs: tuple[str | None, ...] = ()
        self._tensors: dict[str, dataflow.Tensor] = {}
        self._owners: dict[int, str] = {}
        self._nodes: list[Node] = []
        self._numbers: set[str] = set()

    def dataflow(self) -> Dataflow:
        """Read all nodes."""
        placeholders = iter(self._traced.module.graph.find_nodes(op="placeholder"))
        for slot, tensor in self._traced.tensors.items():
            node = next(placeholders)
            self._names[node] = name = storage_name(slot)
            is_given = isinstance(slot, BatchSlot)
            self._add(name, tensor, lasting=not is_given, whole=is_given, trained=isinstance(slot, ParameterSlot))
        for node in self._traced.module.graph.nodes:
            if node.op == "get_attr":
                tensor = getattr(self._traced.module, str(node.target))
                if isinstance(tensor, Tensor):
                    self._names[node] = node.name
                    self._add(node.name, tensor, lasting=True, whole=True)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._return(node)
        return _with_shared_memory_whole(Dataflow(self._tensors, tuple(self._nodes), self._outputs))

    def _return(self, node: fx.Node) -> None:
        """Note what is there after the step; what it returns is whole."""
        (outputs,) = node.args
        assert isinstance(outputs, Sequence), "the outputs of a trace are a list"
        for item, output in zip(outputs, self._traced.outputs, strict=True):
            name = self._names.get(item) if isinstance(item, fx.Node) else None
            self._outputs = (*self._outputs, name)
            if name is not None and isinstance(output, Leaf):
                self._tensors[name] = replace(self._tensors[name], whole=True)

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, number = node.args
            name = f"{source}.{number}"
            if name in self._tensors:
                self._names[node] = name
            return
        found = node.meta.get("val")
        results = results_of(found)
        read = [item for item in node.all_input_nodes if item in self._names]
        if not isinstance(node.target, OpOverload) or not (read or any(isinstance(item, Tensor) for item in results)):
            return
        if node.target in DETACHES:
            self._names[node] = self._names[read[0]]
            return
        operands: list[fx.Node] = []
        args, kwargs = completed(node.target, node.args, node.kwargs)
        arguments = tuple(self._argument(item, operands) for item in args)
        keywords = tuple((key, self._argument(item, operands)) for key, item in kwargs.items())
        names = [self._result(node, at, item) for at, item in enumerate(results)]
        shapes = tuple(tuple(item.shape) if isinstance(item, Tensor) else None for item in results)
        if not isinstance(found, tuple | list) and names[0] is not None:
            self._names[node] = names[0]
        call = OperatorCall(operator_name(node.target), arguments, shapes, keywords)
        given = tuple(self._names[item] for item in operands)
        changed = {self._names[item] for item in written_nodes(node)}.difference(names)
        written = tuple(at for at, name in enumerate(given) if name in changed and name not in given[:at])
        self._nodes.append(Node(node.name, call, given, tuple(names), written))
        self._hold(self._nodes[-1])

    def _hold(self, node: Node) -> None:
        """Mark what is made of one held parameter alone, not counting tensors made of nothing, such as positions."""
        made = [name for name in node.results if name is not None]
        sources = {self._tensors[name].held for name in node.operands if name not in self._numbers}
        if not sources:
            self._numbers.update(made)
        sources = {node.name} if node.call.operator == GATHERED else sources
        if len(sources) == 1:
            (held,) = sources
            self._tensors |= {name: replace(self._tensors[name], held=held) for name in made}

    def _result(self, node: fx.Node, at: int, found: object) -> str | None:
        """Return the name of a result; one that is written over an operand of its shape has the operand's name."""
        if not isinstance(found, Tensor):
            return None
        assert isinstance(node.target, OpOverload), "a call of an operator"
        schema = node.target._schema
        written = schema.returns[at].alias_info if at < len(schema.returns) else None
        if written is not None and written.is_write:
            for parameter, given in zip(schema.arguments, node.args, strict=False):
                if parameter.alias_info is None or not parameter.alias_info.is_write or not isinstance(given, fx.Node):
                    continue
                if self._tensors[self._names[given]].shape == tuple(found.shape):
                    return self._names[given]
        several = isinstance(node.meta["val"], tuple | list)
        name = f"{node.name}.{at}" if several else node.name
        self._add(name, found, lasting=False)
        return name

    def _add(self, name: str, tensor: Tensor, *, lasting: bool, whole: bool = False, trained: bool = False) -> None:
        viewed = self._owners.setdefault(address(tensor), name)
        self._tensors[name] = dataflow.Tensor(
            name,
            tuple(tensor.shape),
            tensor.dtype.itemsize,
            viewed,
            lasting,
            whole,
            trained=trained,
            dtype=str(tensor.dtype).removeprefix("torch."),
        )

    def _argument(self, item: object, operands: list[fx.Node]) -> Argument:
        match item:
            case fx.Node():
                if item not in self._names:
                    return HOST
                operands.append(item)
                return Operand(len(operands) - 1, self._tensors[self._names[item]].shape)
            case tuple() | list():
                return tuple(self._argument(part, operands) for part in item)
            case None | bool() | int() | float() | str():
                return item
            case _:
                return Symbol(symbol_name(item)) if isinstance(item, Named) else HOST


def filled(argument: Argument, number: object, operands: Iterator[Tensor]) -> object:
    """Return an argument as an operator takes it: `operands` in their order, and `number` for a number of the step.

    For a tuple, `number` may be a tuple with a number for each of its parts.
    """
    match argument:
        case tuple():
            numbers: Sequence[object] = (number,) * len(argument)
            if isinstance(number, tuple | list) and len(number) == len(argument):
                numbers = number
            return [filled(item, one, operands) for item, one in zip(argument, numbers, strict=True)]
        case Operand():
            return next(operands)
        case Symbol(name):
            return number if argument == HOST else resolve_symbol(name)
        case _:
            return argument


def _with_shared_memory_whole(step: Dataflow) -> Dataflow:
    """Return a step in which whatever shares memory that is written while a view of it is in use is whole.

    Lasting tensors that share memory with each other are whole, too.
    """
    born: dict[str, int] = {}
    last = {name: len(step.nodes) for name, tensor in step.tensors.items() if tensor.lasting or name in step.outputs}
    for at, node in enumerate(step.nodes):
        for name in node.tensors:
            last[name] = max(at, last.get(name, 0))
        for name in node.results:
            if name is not None and name not in node.operands:
                born[name] = at
    sharing: dict[str, list[str]] = {}
    for name, tensor in step.tensors.items():
        sharing.setdefault(tensor.viewed, []).append(name)
    lasting = [[name for name in names if step.tensors[name].lasting] for names in sharing.values()]
    shared = {name for names in lasting if len(names) > 1 for name in names}
    for at, node in enumerate(step.nodes):
        for name in node.rewritten:
            viewed = step.tensors[name].viewed
            if any(born.get(item, -1) < at < last.get(item, -1) for item in sharing[viewed] if item != name):
                shared.update(sharing[viewed])
    tensors = {name: replace(tensor, whole=tensor.whole or name in shared) for name, tensor in step.tensors.items()}
    nodes = tuple(replace(node, whole=_is_bound(node, step, shared)) for node in step.nodes)
    return Dataflow(tensors, nodes, step.outputs)


def _is_bound(node: Node, step: Dataflow, shared: Collection[str]) -> bool:
    """Whether a node writes shared memory, or makes a view of it, or writes an operand that it reads elsewhere, too."""
    if any(node.operands.count(name) > 1 for name in node.rewritten):
        return True
    views = (name for name in node.results if name is not None and step.tensors[name].viewed != name)
    return any(name in shared for name in (*node.rewritten, *views))
