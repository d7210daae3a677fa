"""Which calls are there for nothing that they return? Those that may raise an error, or act outside of the step.

`torch.linalg.cholesky` makes two calls: one that returns a factor and a number, and one that returns nothing, and
raises an error if the number says that there is no factor. Such a *check* returns nothing and writes no tensor, so
nothing depends on it. It is kept, writes the storage "generator", like a draw, so checks and draws keep their order,
and none is repeated.

It must not change places with an update either: who catches the error goes on with the parameters as they are. So
beside each storage that is updated lies one of no bytes, which its updates and all checks write. Updates of different
parameters may change places as ever.

Guesses (`frontends.tracing.guesses`) are checks that no draw waits for. Where there are some, checks have a turn of
their own, and wait as well for what adds to gradients or writes to the batch, since calls may be repeated.
"""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import fx
from torch._ops import OpOverload

from outgrow.analysis.updates import updated
from outgrow.frontends.tracing.guesses import at_stake
from outgrow.ir.graph import Graph, Op, Role, Storage

_OF_CHECKS = "checks.turn"


def checks(node: fx.Node) -> bool:
    """Whether a call returns nothing and writes neither a tensor nor the generator."""
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    schema = node.target._schema
    return not schema.returns and not schema.is_mutable


def checks_in_turn(graph: Graph, names: Collection[str], *, guesses: bool) -> Graph:
    """Return a graph in which no check, an op of one of these names, may change places with an update.

    If it `guesses`, not with a write to anything else that is there before the step either, nor with another check.
    """
    written = at_stake if guesses else updated
    own = {op.name: f"{storages[0]}.turn" for op in graph.ops if (storages := written(graph, op))}
    turns = (*dict.fromkeys(own.values()), *([_OF_CHECKS] if guesses else []))
    if not turns or not any(op.name in names for op in graph.ops):
        return graph

    def in_turn(op: Op) -> Op:
        more = turns if op.name in names else (own[op.name],) if op.name in own else ()
        return replace(op, writes=(*op.writes, *more))

    storages = {**graph.storages, **{name: Storage(name, 0, Role.TURN) for name in turns}}
    return replace(graph, storages=storages, instructions=tuple(map(in_turn, graph.ops)))
