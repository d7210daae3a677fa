"""Which ops and storages does a search have to see? Only what is large: the rest is taken together.

A storage below the problem's `minimum_bytes` neither moves nor is built again by itself. Of such storages only the
bytes matter, and of ops that touch no other ones only the seconds; updates, statistics and scalars are two thirds of
the ops of many steps. So a search has two to three times as many trials in the same time.

    seen storages     of at least `minimum_bytes`
    seen ops          the first one, those that touch a seen storage, and those that lend
    a contracted op   a seen op and the unseen ones after it, up to the next
    its seconds       those of all of them; when it is repeated, those of the seen one alone
    its workspace     the most of any of them, with what unseen storages hold meanwhile in the order of the graph

A contracted space is a space as any other, but its costs are estimates: a storage that is not seen lives as long as in
the graph, even if a chain reads it later, and copies begin and end between contracted ops. So what a search finds is
judged once more in the space that it was contracted from (`Contraction.spread`).
"""

from dataclasses import dataclass, replace

import numpy as np

from outgrow.planning.arrays import Flags, Integers, starts
from outgrow.planning.search.changes import Alike
from outgrow.planning.search.sequence import Policy
from outgrow.planning.search.space import Space
from outgrow.planning.search.tables import Tables


@dataclass(frozen=True)
class Contraction:
    """A contracted space, and the uses of the whole one that its own uses are."""

    space: Space
    uses: Integers
    whole: Space

    def spread(self, policy: Policy) -> Policy:
        """Return the policy of the whole space that a policy of the contracted one means."""
        found = self.whole.start.copy()
        found[self.uses] = policy
        return found


def contracted(space: Space) -> Contraction:
    """Return a space in which only what is large is seen."""
    tables = space.tables
    seen = tables.size >= space.problem.minimum_bytes
    storage_of = np.repeat(np.arange(len(tables.size)), np.diff(tables.use_start))
    uses = np.flatnonzero(seen[storage_of])
    number = np.full(len(storage_of), -1, dtype=np.int64)
    number[uses] = np.arange(len(uses))
    return Contraction(
        space=replace(
            space,
            names=tuple(name for name, is_seen in zip(space.names, seen, strict=True) if is_seen),
            tables=_tables(tables, seen, uses, number),
            alike=_alike(space.alike, uses, number),
            price=space.price[uses],
            lasting=space.lasting[uses],
            start=space.start[uses],
            stowing=space.stowing[uses],
        ),
        uses=uses,
        whole=space,
    )


def _alike(alike: Alike, uses: Integers, number: Integers) -> Alike:
    """The same groups of rests; all rests are of seen storages."""
    return alike._replace(
        rests=number[alike.rests],
        kind_of=alike.kind_of[uses],
        kind_members=number[alike.kind_members],
        pattern_of=alike.pattern_of[uses],
        pattern_members=number[alike.pattern_members],
    )


def _tables(tables: Tables, seen: Flags, uses: Integers, number: Integers) -> Tables:
    """The tables of seen storages and contracted ops."""
    touches = seen[tables.touched]
    touching = np.repeat(np.arange(len(tables.op_seconds)), np.diff(tables.touch_start))
    is_first = tables.lends != 0
    is_first[touching[touches]] = True
    is_first[:1] = True
    first = np.flatnonzero(is_first)
    op_of = np.cumsum(is_first) - 1
    storage = np.where(seen, np.cumsum(seen) - 1, -1)
    writing = np.repeat(seen, np.diff(tables.write_start))
    held = tables.op_workspace + _held_unseen(tables, seen)
    born = np.where(tables.birth >= 0, op_of[tables.birth], -1)
    return tables._replace(
        op_seconds=np.add.reduceat(tables.op_seconds, first),
        again_seconds=tables.again_seconds[first],
        op_workspace=np.maximum.reduceat(held, first),
        touch_start=starts(np.bincount(op_of[touching[touches]], minlength=len(first))),
        touched=storage[tables.touched[touches]],
        touch_use=number[tables.touch_use[touches]],
        touch_writes=tables.touch_writes[touches],
        size=tables.size[seen],
        birth=born[seen],
        stays=tables.stays[seen],
        moves=tables.moves[seen],
        anchors=tables.anchors[seen],
        stow_rest=np.where(tables.stow_rest < 0, -1, number[tables.stow_rest])[seen],
        use_start=starts(np.diff(tables.use_start)[seen]),
        use_at=op_of[tables.use_at[uses]],
        writes=tables.writes[uses],
        limit=np.searchsorted(first, tables.limit[uses], side="right") - 1,  # that begins there or before; -1 stays
        write_start=starts(np.diff(tables.write_start)[seen]),
        write_at=op_of[tables.write_at[writing]],
        chain_seconds=tables.chain_seconds[uses],
        over=_over(tables.over[first], storage),
        lends=tables.lends[first],
    )


def _held_unseen(tables: Tables, seen: Flags) -> Integers:
    """The bytes of unseen storages at each op, in the order of the graph."""
    ops = len(tables.op_seconds)
    used = np.diff(tables.use_start) > 0
    last = np.full(len(seen), ops - 1, dtype=np.int64)
    last[used & ~tables.stays] = tables.use_at[tables.use_start[1:][used & ~tables.stays] - 1]
    first = np.where(tables.anchors, 0, np.maximum(tables.birth, 0))
    change = np.zeros(ops + 1, dtype=np.int64)
    np.add.at(change, first[~seen], tables.size[~seen])
    np.add.at(change, last[~seen] + 1, -tables.size[~seen])
    return np.cumsum(change[:ops])


def _over(over: Integers, storage: Integers) -> Integers:
    """What may be written over what, among seen storages."""
    found = np.where(over < 0, -1, storage[over])
    found[found[:, 0] < 0] = -1
    return found
