"""How does a traced step become calls on named tensors? Node by node, views included; see `operators.dataflow`."""

import operator
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, fx
from torch._ops import OpOverload

from outgrow.frontends.arguments import completed
from outgrow.frontends.capture import storage_name
from outgrow.frontends.convert import NAMED_LITERALS, address
from outgrow.frontends.loading import blamed_on
from outgrow.frontends.names import operator_name, symbol_name
from outgrow.frontends.state import BatchSlot, Training
from outgrow.frontends.trace import Traced, trace
from outgrow.frontends.unallocated import build_unallocated
from outgrow.frontends.workload import Workload
from outgrow.ir.graph import Symbol
from outgrow.operators import dataflow
from outgrow.operators.dataflow import Dataflow, Node
from outgrow.operators.tdl import Argument, Call, Operand

_HOST = Symbol("host")
"""A number that is known when the step runs."""


def workload_dataflow(function: Callable[..., Workload], settings: Mapping[str, object]) -> Dataflow:
    """Build a workload without memory and return the dataflow of its step. Nothing is run."""
    workload = build_unallocated(function, settings)
    training = Training((workload.model,), (workload.optimizer,))
    with blamed_on("the step cannot be captured"):
        return dataflow_of(trace(workload.step, training, tuple(workload.batches[0]), {}))


def dataflow_of(traced: Traced) -> Dataflow:
    """Return the dataflow of a traced step: every call that has a tensor as operand or result."""
    return _Reading(traced).dataflow()


class _Reading:
    """Goes through the nodes of a trace once."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._names: dict[fx.Node, str] = {}
        self._tensors: dict[str, dataflow.Tensor] = {}
        self._owners: dict[int, str] = {}
        self._nodes: list[Node] = []

    def dataflow(self) -> Dataflow:
        """Read all nodes."""
        placeholders = iter(self._traced.module.graph.find_nodes(op="placeholder"))
        for slot, tensor in self._traced.tensors.items():
            node = next(placeholders)
            self._names[node] = storage_name(slot)
            self._add(storage_name(slot), tensor, lasting=not isinstance(slot, BatchSlot))
        for node in self._traced.module.graph.nodes:
            if node.op == "get_attr":
                tensor = getattr(self._traced.module, str(node.target))
                if isinstance(tensor, Tensor):
                    self._names[node] = node.name
                    self._add(node.name, tensor, lasting=True)
            elif node.op == "call_function":
                self._call(node)
        return Dataflow(self._tensors, tuple(self._nodes))

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, number = node.args
            name = f"{source}.{number}"
            if name in self._tensors:
                self._names[node] = name
            return
        found = node.meta.get("val")
        results: Sequence[object] = found if isinstance(found, tuple | list) else (found,)
        if not isinstance(node.target, OpOverload) or not any(isinstance(item, Tensor) for item in results):
            return
        operands: list[fx.Node] = []
        args, kwargs = completed(node.target, node.args, node.kwargs)
        arguments = tuple(self._argument(item, operands) for item in args)
        keywords = tuple((key, self._argument(item, operands)) for key, item in kwargs.items())
        names = [self._result(node, at, item) for at, item in enumerate(results)]
        shapes = tuple(tuple(item.shape) if isinstance(item, Tensor) else None for item in results)
        if not isinstance(found, tuple | list) and names[0] is not None:
            self._names[node] = names[0]
        call = Call(operator_name(node.target), arguments, shapes, keywords)
        self._nodes.append(Node(node.name, call, tuple(self._names[item] for item in operands), tuple(names)))

    def _result(self, node: fx.Node, at: int, found: object) -> str | None:
        """Return the name of a result; one that an operand was written over has the operand's, if it has its shape."""
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

    def _add(self, name: str, tensor: Tensor, *, lasting: bool) -> None:
        viewed = self._owners.setdefault(address(tensor), name)
        self._tensors[name] = dataflow.Tensor(name, tuple(tensor.shape), tensor.dtype.itemsize, viewed, lasting)

    def _argument(self, item: object, operands: list[fx.Node]) -> Argument:
        match item:
            case fx.Node():
                if item not in self._names:
                    return _HOST
                operands.append(item)
                return Operand(len(operands) - 1, self._tensors[self._names[item]].shape)
            case tuple() | list():
                return tuple(self._argument(part, operands) for part in item)
            case None | bool() | int() | float() | str():
                return item
            case _:
                return Symbol(symbol_name(item)) if isinstance(item, NAMED_LITERALS) else _HOST
