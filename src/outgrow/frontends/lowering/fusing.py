"""Which ops can become one kernel? Neighbours that go through the same tensors, element by element or summing them up.

    fusion = fusible ops of which no other op stands between, connected by the storages that they touch

An op is *fusible* if it computes element by element, normalises, or reduces; if it writes nothing but its results,
draws no random numbers, and takes no number that is only known at a call, such as a learning rate. So an optimizer's
update, in place and by such numbers, is not fusible; nor is what a step on a GPU does in memory of the host.

Ops depend on each other only through storages that both touch, so an op on a path out of a fusion and back belongs to
it: therefore a fusion can run in one piece, where its first op stood. It reads `operands` and gives `results`, which
other ops want; what lies between is never born.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch._ops import OpOverload

from outgrow.frontends.tracing.names import resolve_operator
from outgrow.ir.graph import Graph, Op, Ref, Role

_FUSIBLE = frozenset(
    f"aten.{name}"
    for name in (
        "_log_softmax.default",
        "_log_softmax_backward_data.default",
        "_softmax.default",
        "_softmax_backward_data.default",
        "_to_copy.default",
        "amax.default",
        "amin.default",
        "full_like.default",
        "leaky_relu_backward.default",
        "native_group_norm.default",
        "native_group_norm_backward.default",
        "native_layer_norm.default",
        "native_layer_norm_backward.default",
        "ones_like.default",
        "var_mean.correction",
        "zeros_like.default",
    )
)
"""Operators that a compiler of kernels fuses with others, beside those that torch calls element-wise or a reduction."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Ops that become one; the values that they read and do not make; the values that they make for others."""

    ops: tuple[Op, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]


def fusions(graph: Graph, elsewhere: Collection[str] = ()) -> list[Fusion]:
    """Return the fusions of at least two ops of a captured graph, in the order of their first ops.

    Storages `elsewhere` are not on the device of the step.
    """
    users: dict[str, set[str]] = {}
    for op, touched in zip(graph.ops, graph.touched_at, strict=True):
        for storage in touched:
            users.setdefault(storage, set()).add(op.name)
    here = partial(_is_fusible, graph, elsewhere)
    runs = (tuple(run) for fusible, run in groupby(graph.ops, here) if fusible)
    connected = (ops for run in runs for ops in _connected(graph, run) if len(ops) > 1)
    return [_fusion(graph, ops, users) for ops in connected]


def fused(graph: Graph, found: Sequence[Fusion], operator_of: Callable[[Fusion], str]) -> Graph:
    """Return a captured graph in which each fusion is one op, which applies its `operator_of` to a list of tensors."""
    first = {fusion.ops[0].name: fusion for fusion in found}
    gone = {op.name for fusion in found for op in fusion.ops}
    items = [
        _one_op(first[op.name], operator_of(first[op.name])) if op.name in first else op
        for op in graph.ops
        if op.name in first or op.name not in gone
    ]
    used = {name for op in items for name in graph.touched(op)}
    unborn = {name for name in graph.born_at if name not in used and name not in graph.kept}
    storages = {name: storage for name, storage in graph.storages.items() if name not in unborn}
    values = {name: value for name, value in graph.values.items() if value.storage not in unborn}
    return replace(graph, storages=storages, values=values, instructions=tuple(items))


def _is_fusible(graph: Graph, elsewhere: Collection[str], op: Op) -> bool:
    function = resolve_operator(op.operator)
    if not isinstance(function, OpOverload) or op.writes or function._schema.is_mutable:
        return False
    tags = set(function.tags)
    is_known = op.operator in _FUSIBLE or bool(tags & {torch.Tag.pointwise, torch.Tag.reduction})
    values = [graph.values[name] for name in (*op.operands, *op.results) if name is not None]
    storages = [graph.storages[value.storage] for value in values]
    is_of_tensors = all(item.role is not Role.SCALAR and item.name not in elsewhere for item in storages)
    return is_known and is_of_tensors and torch.Tag.nondeterministic_seeded not in tags


def _connected(graph: Graph, run: Sequence[Op]) -> list[tuple[Op, ...]]:
    """Return the ops of a run in groups that share no storage, in the order of the groups' first ops."""
    groups: list[tuple[set[str], list[int]]] = []
    for at, op in enumerate(run):
        storages, members = set(graph.touched(op)), [at]
        apart: list[tuple[set[str], list[int]]] = []
        for group in groups:
            if storages.isdisjoint(group[0]):
                apart.append(group)
            else:
                storages |= group[0]
                members += group[1]
        groups = [*apart, (storages, members)]
    return [tuple(run[at] for at in sorted(members)) for _, members in sorted(groups, key=lambda group: min(group[1]))]


def _fusion(graph: Graph, ops: tuple[Op, ...], users: dict[str, set[str]]) -> Fusion:
    names = {op.name for op in ops}
    made = [name for op in ops for name in op.results if name is not None]
    born = {graph.values[name].storage for name in made}
    read = dict.fromkeys(name for op in ops for name in op.operands)
    wanted = {name for name in born if name in graph.kept or not users[name] <= names}
    return Fusion(
        ops,
        operands=tuple(name for name in read if graph.values[name].storage not in born),
        results=tuple(name for name in made if graph.values[name].storage in wanted),
    )


def _one_op(fusion: Fusion, operator: str) -> Op:
    name = f"{fusion.ops[0].name}_to_{fusion.ops[-1].name}"
    return Op(name, operator, (tuple(Ref(operand) for operand in fusion.operands),), (), fusion.results)
