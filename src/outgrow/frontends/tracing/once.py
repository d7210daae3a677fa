"""Which calls run once though they write nothing that outlives the step? Those that might give other bits then.

A value that is built again must have the bits that it had, or a backward pass goes by another mask than its forward
pass went by. So such an op writes a storage of no bytes, a turn of its own: no law repeats what writes one, and nothing
else waits for it. Where torch is to be deterministic it runs another kernel, or raises an error; and one thread of a
CPU has one order.
"""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from outgrow.frontends.tracing.names import operator_name
from outgrow.ir.graph import Graph, Op, Role, Storage
from outgrow.operators.varying import varies
from outgrow.runtime.results import results_of

_MASKS = (torch.bool, torch.uint8)


def may_vary(node: fx.Node) -> bool:
    """Whether a call may give other bits of the same operands, with the settings of now."""
    if not isinstance(node.target, OpOverload) or _is_deterministic():
        return False
    found = next((item for item in results_of(node.meta.get("val")) if isinstance(item, Tensor)), None)
    if found is None:
        return False
    on_cpu = found.device.type == "cpu"
    if on_cpu and torch.get_num_threads() == 1:
        return False
    return varies(operator_name(node.target), on_cpu=on_cpu) and not _is_by_masks(node)


def _is_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def _is_by_masks(node: fx.Node) -> bool:
    """Whether a call finds places by masks alone, each place once."""
    indices = node.args[1] if len(node.args) > 1 else None
    if not isinstance(indices, (list, tuple)):
        return False
    return all(item.meta["val"].dtype in _MASKS for item in indices if isinstance(item, fx.Node))


def once(graph: Graph, names: Collection[str]) -> Graph:
    """Return a graph in which no op of one of these names is repeated."""
    own = {op.name: f"{op.name}.once" for op in graph.ops if op.name in names}

    def written(op: Op) -> Op:
        return replace(op, writes=(*op.writes, own[op.name])) if op.name in own else op

    storages = {**graph.storages, **{name: Storage(name, 0, Role.TURN) for name in own.values()}}
    return replace(graph, storages=storages, instructions=tuple(map(written, graph.ops)))
