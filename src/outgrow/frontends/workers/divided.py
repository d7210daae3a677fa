"""How does one worker's step come from the whole one? The trace runs once more, on that worker's parts.

Each node of the trace fetches what this worker needs of its operands, runs the worker's own call, and hands on what
others hold of the results (`planning.partition.shares`). That run is traced again, so a worker's step is an ordinary
trace: its slots are those of the whole step, with parts of tensors in them, and everything after it is as for one
device.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx

from outgrow.frontends.fake.fakes import FakeMode, fake_mode
from outgrow.frontends.tracing.leaf import Leaf
from outgrow.frontends.tracing.names import completed, resolve_operator
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.training.guards import symbol
from outgrow.frontends.user.training.sharing import address
from outgrow.frontends.user.training.state import GradientSlot, Slot, StateSlot, local, storage_name
from outgrow.frontends.workers.dataflow import filled
from outgrow.frontends.workers.exchange import MOST_UNDER_WAY, Coming, Wire, here
from outgrow.frontends.workers.exchange_order import NOMINAL, Pace, in_order
from outgrow.operators.dataflow import GATHERED, Node
from outgrow.operators.regions import Region, shape_of
from outgrow.operators.tdl import Reducer
from outgrow.planning.partition.shares import Shares, Spread, Task, held, moves

_RESHAPED = ("aten.view.default", "aten._unsafe_view.default")
"""Operators that ask for a layout that a part need not have."""


def divided(
    traced: Traced,
    shares: Shares,
    worker: int,
    group: str,
    counts: Tensor,
    states: Mapping[StateSlot, tuple[int, ...]],
    pace: Pace = NOMINAL,
) -> Traced:
    """Return the trace of what one worker does; it sends and receives in a group, and counts what it receives.

    What hangs in slots after the step is cut as their `states` are. Calls are ordered for workers of this pace.
    """
    with fake_mode(list(traced.tensors.values())) as mode:
        assert mode.shape_env is not None, "the mode was given an environment of symbols"
        twin = mode.from_tensor(counts, static_shapes=True)
        tensors = {
            slot: _part(tensor, slot, traced.originals.get(id(tensor)), shares, worker, mode)
            for slot, tensor in traced.tensors.items()
        }
        numbers = enumerate(traced.hyper.values())
        symbols = [symbol(mode.shape_env, f"hyper_{at}", value) for at, value in numbers]
        wire = Wire(worker, group, twin, 0 if shares.partition.is_tight else MOST_UNDER_WAY)
        run = _Worker(traced, shares, pace, worker, wire)
        found: list[object] = []

        def traced_anew(inputs: Sequence[object]) -> list[object]:
            given = run.run(*inputs, enable_io_processing=False)
            found[:] = [run.put_back(at, item, states) for at, item in enumerate(given)]
            run.wire.settle()
            return [item.detach() if isinstance(item, Tensor) else item for item in found]

        tracer = make_fx(traced_anew, _allow_non_fake_inputs=True, _error_on_data_dependent_ops=False)
        with mode, torch.no_grad(), _use_lazy_graph_module(should_use=True):
            module = tracer([*tensors.values(), *symbols])
    by_slot = {
        slot: item
        for slot, item in zip(traced.outputs, found, strict=True)
        if slot is not None and not isinstance(slot, Leaf) and isinstance(item, Tensor)
    }
    return replace(
        traced,
        module=module,
        tensors=tensors,
        originals={**traced.originals, id(twin): counts},
        born={slot: by_slot[slot] for slot in traced.born},
        gradients=tuple(item for slot, item in by_slot.items() if isinstance(slot, GradientSlot)),
    )


def _part(tensor: Tensor, slot: Slot, original: Tensor | None, shares: Shares, worker: int, mode: FakeMode) -> Tensor:
    """Return a fake tensor like the part of an input that a worker has, or will have; the whole is its own part.

    A part that is there lies as some step has left it, or a checkpoint.
    """
    own = shape_of(shares.held(storage_name(slot)).boxes[worker])
    if isinstance(original, DTensor):
        part = local(original)
        assert tuple(part.shape) == own, "what is spread is spread by these shares"
        return mode.from_tensor(part, static_shapes=True)
    if own == tuple(tensor.shape):
        return tensor
    with mode:
        return torch.empty(own, dtype=tensor.dtype, device=tensor.device)


class _Worker(fx.Interpreter):
    """Runs a trace on one worker's parts."""

    def __init__(self, traced: Traced, shares: Shares, pace: Pace, worker: int, wire: Wire) -> None:
        ordered, self._early = in_order(traced.module.graph, shares, pace)
        super().__init__(traced.module, graph=ordered)
        self._sent_for: dict[tuple[str, int], Tensor | Coming] = {}
        self._calls = {node.name: node for node in ordered.nodes}
        self._slots = traced.outputs
        self._shares, self._worker, self.wire = shares, worker, wire
        self._nodes = shares.step.by_name

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        """Return what a node is given; all of it is here, unless the node only picks one of several."""
        given = super().fetch_args_kwargs_from_env(n)
        return given if n.target is getitem else pytree.tree_map_only(Coming, Coming.here, given)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node of the trace, after sending for what is to be fetched early."""
        for name in self._early.get(n.name, ()):
            given = _tensors(pytree.tree_leaves(self._given(self._calls[name])))
            for position, tensor in enumerate(given):
                if self._shares.source(self._nodes[name], position) == position:
                    self._sent_for[name, position] = self._send_for(self._nodes[name], position, tensor)
        node = self._nodes.get(n.name)
        if node is None:
            return super().run_node(n)
        layouts = [tuple(item.stride()) for item in _tensors([item.meta.get("val") for item in _nodes(n)])]
        return self._run(node, *self._given(n), layouts)

    def _given(self, n: fx.Node) -> tuple[list[object], dict[str, object]]:
        """Return all arguments of a call, those that it leaves out too."""
        assert isinstance(n.target, OpOverload), "a call of an operator"
        return completed(n.target, *self.fetch_args_kwargs_from_env(n))

    def put_back(self, at: int, output: object, states: Mapping[StateSlot, tuple[int, ...]]) -> object:
        """Return an output of the step, cut as `states` say for its slot."""
        slot, name = self._slots[at], self._shares.step.outputs[at]
        if slot is None or isinstance(slot, Leaf) or name is None or not isinstance(output, Tensor):
            return output
        shares, own = self._shares, self._shares.held(name)
        wanted = held(shares.step.tensors[name].shape, states[slot], shares.partition.workers)
        moved = moves(own, wanted.boxes, shares.partition.workers)
        boxes = own.boxes[self._worker], wanted.boxes[self._worker]
        return here(self.wire.carried(output, *boxes, moved, Reducer.SUM, 0.0))

    def _run(
        self, node: Node, args: list[object], kwargs: dict[str, object], layouts: Sequence[tuple[int, ...]]
    ) -> object:
        """Fetch operands, run the worker's own call, and hand the results on.

        A call that is not cut finds its operands laid out as in the whole step: it may draw random numbers into them in
        the order of their memory.
        """
        shares, task = self._shares, self._shares.tasks(node)[self._worker]
        given = list(_tensors((*args, *kwargs.values())))
        operands: list[Tensor] = []
        for position, tensor in enumerate(given):
            source = shares.source(node, position)
            is_first, layout = source == position, layouts[position] if task.call == node.call else None
            operands.append(self._fetched(node, task, position, tensor, layout) if is_first else operands[source])
        waiting = iter(operands)
        arguments = [filled(item, value, waiting) for item, value in zip(task.call.arguments, args, strict=True)]
        keywords = {name: filled(item, kwargs[name], waiting) for name, item in task.call.keywords}
        for name in node.rewritten:
            self.wire.settle(operands[node.operands.index(name)])
        results = _function(task.call.operator)(*arguments, **keywords)
        several = isinstance(results, tuple | list)
        own = [
            self._handed_on(node, task, number, item, given) if isinstance(item, Tensor) else item
            for number, item in enumerate(results if several else (results,))
        ]
        for position in node.written:
            spread = shares.rewritten(node, position)
            self._write(given[position], operands[position], node.operands[position], spread)
        if task.quotient is not None:
            upper, lower = task.quotient
            own[upper] = here(own[upper]) / here(own[lower])
        return own if several else own[0]

    def _fetched(self, node: Node, task: Task, position: int, tensor: Tensor, layout: tuple[int, ...] | None) -> Tensor:
        """Return what the worker's call needs of an operand; for one that is not read, a tensor of the right shape."""
        early = self._sent_for.pop((node.name, position), None)
        coming = self._send_for(node, position, tensor) if early is None else early
        if self._wanted(task, position) is not None:
            found = here(coming)
            return found if layout in (None, tuple(found.stride())) else _laid_out(found, layout)
        (shape,) = (operand.shape for operand in task.call.operands if operand.position == position)
        if position in task.zeros:
            return tensor.new_zeros(shape)
        if layout is not None and (tuple(tensor.shape), tuple(tensor.stride())) != (shape, layout):
            return tensor.new_empty_strided(shape, layout)
        return tensor if tuple(tensor.shape) == shape else tensor.new_empty(shape)

    def _send_for(self, node: Node, position: int, tensor: Tensor) -> Tensor | Coming:
        """Begin to fetch what the worker's call needs of an operand."""
        task, moved = self._shares.tasks(node)[self._worker], self._shares.fetched(node, position)
        box, wanted = self._box(node.operands[position]), self._wanted(task, position)
        return self.wire.carried(tensor, box, wanted, moved, Reducer.SUM, task.fill)

    @staticmethod
    def _wanted(task: Task, position: int) -> Region | None:
        return None if position in task.zeros else task.needed.get(position)

    def _handed_on(self, node: Node, task: Task, number: int, result: Tensor, given: list[Tensor]) -> Tensor | Coming:
        """Return what this worker holds of a result; if the result is an operand, it is written there."""
        name = node.results[number]
        assert name is not None, "a result has a name"
        scaled = result if task.divisor == 1 else result / task.divisor
        made = self._shares.made(node, number)
        if name not in node.operands:
            return self._held(scaled, name, made)
        position = node.operands.index(name)
        self._write(given[position], scaled, name, made)
        return given[position]

    def _write(self, own: Tensor, made: Tensor, name: str, spread: Spread) -> None:
        """Write what was made into what this worker holds; where that is the same memory, it is there already."""
        found = here(self._held(made, name, spread))
        if address(found) != address(own) or found.shape != own.shape:
            self.wire.settle(own)
            own.copy_(found)

    def _held(self, made: Tensor, name: str, spread: Spread) -> Tensor | Coming:
        """Return what this worker holds of a tensor, from what workers made of it."""
        moved, box = self._shares.handed_on(name, spread), self._box(name)
        found = self.wire.carried(made, spread.boxes[self._worker], box, moved, _reducer(spread), 0.0)
        if isinstance(found, Coming):
            return Coming(made, lambda: _alone(found.here(), made))
        return _alone(found, made)

    def _box(self, name: str) -> Region:
        return self._shares.held(name).boxes[self._worker]


def _alone(found: Tensor, made: Tensor) -> Tensor:
    """Return what was found, copied to memory of its own if it is only a part of what was made."""
    return found.clone() if address(found) == address(made) and found.shape != made.shape else found


def _reducer(spread: Spread) -> Reducer:
    reducers = {kind for kinds in spread.kinds for kind in kinds if isinstance(kind, Reducer)}
    return reducers.pop() if reducers else Reducer.SUM


def _laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a copy with these strides; elements that are one in memory are copied once."""
    shape = tensor.shape
    for dim, stride in enumerate(strides):
        tensor = tensor.narrow(dim, 0, 1) if stride == 0 and shape[dim] > 1 else tensor
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor).expand(shape)


def _nodes(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes among the arguments of a call, in the order of its completed arguments."""
    assert isinstance(node.target, OpOverload), "a call of an operator"
    args, kwargs = completed(node.target, node.args, node.kwargs)
    yield from (item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, fx.Node))


def _tensors(values: Sequence[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _function(operator: str) -> Callable[..., Any]:
    if operator in _RESHAPED:
        return lambda tensor, shape: tensor.reshape(shape)
    if operator == GATHERED:
        return lambda tensor: tensor
    return resolve_operator(operator)
