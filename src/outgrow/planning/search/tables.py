"""How does a graph look to compiled code? As arrays: what each op touches, what each storage goes through.

Ops and storages are numbered in the order of the graph. A *use* is one op that touches one storage; uses are
numbered storage by storage, so `use_start[s]:use_start[s + 1]` are those of storage s, in order. The *rest* after a
use has the number of that use: a storage rests from one use to the next, and after its last use to the end of the step.

The *chain* of a storage as of a use are the ops that wrote it up to there, the first `writes[use]` of
`write_at[write_start[s]:write_start[s + 1]]`: what has to be repeated to build it again. `limit[use]` is the last op
before which that gives the same bits (`analysis.chains`), -1 if it never does.

`moves` says which storages may leave the device between two uses, `anchors` which do not, and have their room from the
beginning of the step to its end, unless they are stowed. For a storage that may rest in the next tier between
steps, `stow_rest` is the rest after its last use, whose policy says whether it does; else -1.

`again_seconds` are those of an op when it is repeated: fewer only where ops are taken together (`contracted`).

`over` says over which storages an op may write its first result, should they die there in some sequence. After an op
that `lends`, what it touches is in flight (`ir.flight`): it stays until the op that ends this.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from outgrow.analysis.chains import chain_limits
from outgrow.analysis.liveness import lifetimes
from outgrow.ir.flight import flights, is_in_flight, lends
from outgrow.ir.graph import Graph
from outgrow.operators.stalls import slowdown
from outgrow.planning.arrays import Flags, Integers, Reals, starts
from outgrow.planning.free.reuse import stays_longer, ways
from outgrow.planning.leaving import leaving, stowing
from outgrow.planning.problem import Problem
from outgrow.rewriting.reuse import misfit

_OPERANDS = 2
"""How many operands of an op are considered for writing over, at most."""


class Tables(NamedTuple):
    """The arrays of one graph without transfers, under the costs of one problem."""

    op_seconds: Reals
    again_seconds: Reals
    op_workspace: Integers
    touch_start: Integers
    touched: Integers
    touch_use: Integers
    touch_writes: Flags
    size: Integers
    birth: Integers
    stays: Flags
    moves: Flags
    anchors: Flags
    stow_rest: Integers
    use_start: Integers
    use_at: Integers
    writes: Integers
    limit: Integers
    write_start: Integers
    write_at: Integers
    chain_seconds: Reals
    over: Integers
    lends: Integers


def tables_of(problem: Problem, graph: Graph) -> Tables:
    """Return the arrays of `graph`, a rewriting of the problem's graph without transfers."""
    ops = graph.ops
    names = tuple(graph.storages)
    number = {name: at for at, name in enumerate(names)}
    may_leave = leaving(problem, graph)
    may_stow = stowing(graph, may_leave)
    touches = graph.touched_at
    touched = np.array([number[name] for items in touches for name in items], dtype=np.int64)
    touch_start = starts([len(items) for items in touches])
    pairs = zip(touches, graph.written_at, strict=True)
    touch_writes = np.array([name in written for items, written in pairs for name in items], dtype=np.bool_)
    use_touch = np.argsort(touched, kind="stable")  # uses are the touches, storage by storage
    use_start = starts(np.bincount(touched, minlength=len(names)))
    use_at = np.repeat(np.arange(len(ops)), np.diff(touch_start))[use_touch]
    storage_of = touched[use_touch]
    written_before = starts(touch_writes[use_touch].astype(np.int64))
    write_start = written_before[use_start]
    writes = written_before[1:] - write_start[storage_of]
    write_at = use_at[touch_writes[use_touch]]
    stays = np.array([life.death == len(ops) for life in lifetimes(graph).values()], dtype=np.bool_)
    limits = chain_limits(graph)
    limit = np.array(_as_of_uses([(-1, *limits.get(name, ())) for name in names], storage_of, writes), dtype=np.int64)
    limit[stays[storage_of]] = -1
    limit[_in_flight(graph, number, storage_of, use_at)] = -1
    seconds = np.array([problem.seconds_of(op) * slowdown(graph.values, op) for op in ops])
    spent = [tuple(accumulate(seconds[write_at[begin:end]], initial=0.0)) for begin, end in pairwise(write_start)]
    workspace = problem.workspace
    return Tables(
        op_seconds=seconds,
        again_seconds=seconds,
        op_workspace=np.array([workspace.get(op.captured, 0) for op in ops], dtype=np.int64),
        touch_start=touch_start,
        touched=touched,
        touch_use=np.argsort(use_touch),
        touch_writes=touch_writes,
        size=np.array([storage.size_bytes for storage in graph.storages.values()], dtype=np.int64),
        birth=np.array([graph.born_at.get(name, -1) for name in names], dtype=np.int64),
        stays=stays,
        moves=np.array([name in may_leave for name in names], dtype=np.bool_),
        anchors=stays & problem.anchored,
        stow_rest=np.where([name in may_stow for name in names], use_start[1:] - 1, -1),
        use_start=use_start,
        use_at=use_at,
        writes=writes,
        limit=limit,
        write_start=write_start,
        write_at=write_at,
        chain_seconds=np.array(_as_of_uses(spent, storage_of, writes), dtype=np.float64),
        over=_overs(problem, graph, number, may_leave, may_stow),
        lends=np.array([lends(op) for op in ops], dtype=np.int64),
    )


def _overs(
    problem: Problem, graph: Graph, number: dict[str, int], may_leave: Collection[str], may_stow: Collection[str]
) -> Integers:
    """For each op the storage of its first result, then up to two operands that it may be written over; else -1.

    An operand that would have to stay longer is left out. On an anchored device a result that outlives the step is
    written over nothing. An op that would stall is left out, too: that is for `planning.free` to decide.
    """
    unstalled = replace(problem, stalls=False)
    found = np.full((len(graph.ops), 1 + _OPERANDS), -1, dtype=np.int64)
    for at, op in enumerate(graph.ops):
        fitting = [
            way for way in ways(unstalled, graph, op) if misfit(graph.values, graph.storages, op, way.operand) is None
        ]
        if not fitting or graph.storages[graph.written_at[at][0]].size_bytes < problem.minimum_bytes:
            continue
        target, *operands = (
            graph.values[name].storage
            for name in (op.results[0], *(op.references[way.operand] for way in fitting))
            if name is not None
        )
        if problem.anchored and target in graph.kept:
            continue
        own = [name for name in operands if not stays_longer(graph, target, name, may_leave, may_stow)][:_OPERANDS]
        if own:
            found[at, : 1 + len(own)] = [number[name] for name in (target, *own)]
    return found


def _in_flight(graph: Graph, number: dict[str, int], storage_of: Integers, use_at: Integers) -> list[int]:
    """Return the uses after which a storage is in flight, so that it stays until the exchange has ended."""
    return [
        int(use)
        for name, flown in flights(graph).items()
        for use in np.flatnonzero(storage_of == number[name])
        if is_in_flight(flown, use_at[use], use_at[use] + 1)
    ]


def _as_of_uses(rows: Sequence[Sequence[float]], storage_of: Integers, writes: Integers) -> list[float]:
    """Return, for each use, what the row of its storage says for as often as that was written up to then."""
    return [rows[storage][count] for storage, count in zip(storage_of, writes, strict=True)]
