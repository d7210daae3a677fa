"""What is there to decide? The rests of storages that may be built again or stowed, and which of them are alike.

Two rests are of one *kind* if the same operators made the storage, used it last and use it next, and its size is the
same: what repeats in a network can be decided together. They are of one *pattern* if all this holds except for the
size: the same place in blocks of other widths.

For a storage that may rest in the next tier between steps, the rest after its last use stands for that: any policy but
KEEP stows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from outgrow.ir.graph import Graph
from outgrow.planning.arrays import Integers, Reals, starts
from outgrow.planning.problem import Problem
from outgrow.planning.search.changes import Alike
from outgrow.planning.search.sequence import DISCARD, KEEP, Policy
from outgrow.planning.search.tables import Tables, tables_of


@dataclass(frozen=True)
class Space:
    """The rests that may be rebuilt or stowed, alike ones together, and what that costs.

    `names` are those of the storages. For each rest of any storage, `price` is in seconds a byte, and `lasting` the
    seconds of arithmetic while it lasts. `start` is the policy that keeps all of them, and builds again what a chain
    needs after its last use; `stowing` stows all that may be stowed.
    """

    problem: Problem
    graph: Graph
    names: tuple[str, ...]
    tables: Tables
    alike: Alike
    price: Reals
    lasting: Reals
    start: Policy
    stowing: Policy
    arithmetic_seconds: float

    @property
    def rests(self) -> Integers:
        """The rests that may be rebuilt or stowed, in order of time."""
        return self.alike.rests

    @property
    def kinds(self) -> list[Integers]:
        """The rests of each kind."""
        return [self.alike.kind_members[begin:end] for begin, end in pairwise(self.alike.kind_start)]

    def bytes_of(self, rests: Integers) -> int:
        """Return the bytes of the storages of some rests, each of them as often as it rests."""
        storages = np.searchsorted(self.tables.use_start, rests, side="right") - 1
        return int(self.tables.size[storages].sum())


def space_of(problem: Problem, graph: Graph) -> Space:
    """Return what there is to decide about `graph`, a rewriting of the problem's graph without transfers."""
    tables, names = tables_of(problem, graph), tuple(graph.storages)
    storage_of = np.repeat(np.arange(len(tables.size)), np.diff(tables.use_start))
    is_last = np.zeros(len(tables.use_at), dtype=np.bool_)
    is_last[tables.use_start[1:][np.diff(tables.use_start) > 0] - 1] = True
    until = np.where(is_last, tables.use_at, np.append(tables.use_at[1:], 0))
    can_rebuild = tables.moves[storage_of] & (tables.limit >= until)
    can_stow = np.zeros(len(until), dtype=np.bool_)
    can_stow[tables.stow_rest[tables.stow_rest >= 0]] = True
    is_rest = can_stow | (can_rebuild & (is_last | (until - tables.use_at > 1)))
    rests = np.flatnonzero(is_rest)
    rests = rests[np.argsort(tables.use_at[rests], kind="stable")]
    following = np.where(is_last, -1, until)
    patterns = [
        _pattern(graph, tables, names[storage_of[rest]], int(storage_of[rest]), int(rest), int(following[rest]))
        for rest in rests
    ]
    kinds = [(pattern, int(tables.size[storage_of[rest]])) for pattern, rest in zip(patterns, rests, strict=True)]
    link = problem.machine.link
    stow_price = 1 / link.in_bytes_per_second + (tables.writes > 0) / link.out_bytes_per_second
    rebuild_price = tables.chain_seconds / np.maximum(1, tables.size[storage_of])
    elapsed = np.concatenate(([0.0], np.cumsum(tables.op_seconds)))
    start = np.where(can_rebuild & is_last, DISCARD, KEEP).astype(np.int8)
    return Space(
        problem=problem,
        graph=graph,
        names=names,
        tables=tables,
        alike=Alike(
            rests,
            np.cumsum(tables.size[storage_of[rests]]),
            *_groups(kinds, rests, len(storage_of)),
            *_groups(patterns, rests, len(storage_of)),
        ),
        price=np.where(can_stow, stow_price, rebuild_price),
        lasting=elapsed[until] - elapsed[tables.use_at],
        start=start,
        stowing=np.where(can_stow, DISCARD, start).astype(np.int8),
        arithmetic_seconds=float(tables.op_seconds.sum()),
    )


def _pattern(
    graph: Graph, tables: Tables, name: str, storage: int, rest: int, following: int
) -> tuple[tuple[str, ...], str, str]:
    """The operators that made the storage, used it last and use it next; of what is stowed, its role and last use."""
    ops, begin = graph.ops, int(tables.write_start[storage])
    last = ops[int(tables.use_at[rest])].operator
    if rest == tables.stow_rest[storage]:
        return (graph.storages[name].role,), last, ""
    chain = tuple(ops[int(at)].operator for at in tables.write_at[begin : begin + int(tables.writes[rest])])
    return chain, last, "" if following < 0 else ops[following].operator


def _groups(names: Sequence[object], rests: Integers, count: int) -> tuple[Integers, Integers, Integers]:
    """The group of each rest by its number, where the members of each group start, and the members."""
    groups: dict[object, list[int]] = {}
    for name, rest in zip(names, rests, strict=True):
        groups.setdefault(name, []).append(int(rest))
    group_of = np.full(count, -1, dtype=np.int64)
    for number, members in enumerate(groups.values()):
        group_of[members] = number
    members = np.array([rest for members in groups.values() for rest in members], dtype=np.int64)
    return group_of, starts([len(own) for own in groups.values()]), members
