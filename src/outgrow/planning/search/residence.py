"""What do the instances of a sequence hold, and where do they rest? `analysis.liveness`, in compiled form.

The live bytes of each op of the sequence, workspace included, and every gap between two uses of an instance that may
leave the device, which none does in flight (`ir.flight`). An instance that outlives the step, or that no op uses, stays
to the end; one that is anchored holds its room from the first op on, and has no gaps. One that is stowed, by the policy
of the rest after its last use, has two gaps more: from before the first op (-1) to its first use, if it exists before
the step, and from its last use to behind the last op.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.planning.compiled import compiled
from outgrow.planning.search.sequence import KEEP, OpSequence
from outgrow.planning.search.tables import Tables
from outgrow.planning.search.transfers import Gaps

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Residence(NamedTuple):
    """Seconds and live bytes of each op of a sequence, the gaps by begin, then end, and what is written over.

    `over` has, for each op of the sequence that writes its first result over an operand which dies there, the column
    of that operand in `Tables.over`; else 0.
    """

    seconds: NDArray[np.float64]
    live: Integers
    gaps: Gaps
    over: Integers


def residence_of(tables: Tables, sequence: OpSequence, policy: NDArray[np.int8]) -> Residence:
    """Return what the instances of a sequence hold under the policy that the sequence comes from."""
    live, one, begin, end, size, dirty, whole, over = residence(
        policy, sequence.op, sequence.instance_storage, tables.size, tables.stays, tables.moves, tables.anchors,
        tables.stow_rest, tables.birth, tables.over, tables.lends, sequence.use_instance, sequence.use_at,
        sequence.use_writes,
    )  # fmt: skip
    live += tables.op_workspace[sequence.op]
    seconds = np.where(sequence.rebuilding < 0, tables.op_seconds[sequence.op], tables.again_seconds[sequence.op])
    return Residence(seconds, live, Gaps(one, begin, end, size, dirty, whole), over)


@compiled
def residence(
    policy: NDArray[np.int8], op: Integers, storage: Integers, size: Integers, stays: Flags, moves: Flags,
    anchors: Flags, stow_rest: Integers, born_at: Integers, over: Integers, lends: Integers, use_instance: Integers,
    use_at: Integers, use_writes: Flags,
) -> tuple[Integers, Integers, Integers, Integers, Integers, Flags, Flags, Integers]:  # fmt: skip
    """Live bytes without workspace, then the fields of `Gaps`, in order, and what is written over.

    Of a storage that stays, only the first instance does; others are by-products of building another storage again.
    """
    ops, count, uses = len(op), len(storage), len(use_at)
    first, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    wrote_last, wrote, rested = np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    room = uses + 2 * len(size)
    instance, begin, end = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    dirty = np.empty(room, np.bool_)
    outliving = _outliving(storage, len(size))
    stowed = outliving & (stow_rest[storage] >= 0) & (policy[stow_rest[storage]] != KEEP)
    anchored = outliving & anchors[storage] & ~stowed
    lent = np.zeros(count, np.int64)
    gaps = 0
    for use in range(uses):
        one, at = use_instance[use], use_at[use]
        if last[one] < 0:
            first[one] = at
            if stowed[one] and born_at[storage[one]] < 0:
                instance[gaps], begin[gaps], end[gaps], dirty[gaps] = one, -1, at, False
                gaps += 1
                rested[one] = True
        elif moves[storage[one]] and not anchored[one]:
            rested[one] = rested[one] and not wrote_last[one]
            if at - last[one] > 1 and lent[one] == 0:
                instance[gaps], begin[gaps], end[gaps], dirty[gaps] = one, last[one], at, not rested[one]
                gaps += 1
                rested[one] = True
        last[one], wrote_last[one], wrote[one] = at, use_writes[use], wrote[one] or use_writes[use]
        is_wire = use_writes[use] and lends[op[at]] > 0 and born_at[storage[one]] != op[at]
        lent[one] += 0 if is_wire else lends[op[at]]
    for one in range(count):
        if stowed[one] and last[one] >= 0:
            instance[gaps], begin[gaps], end[gaps], dirty[gaps] = one, last[one], ops, wrote[one]
            gaps += 1
    change = np.zeros(ops + 1, np.int64)
    seen = np.zeros(len(size), np.bool_)
    death = np.empty(count, np.int64)
    for one in range(count):
        own = storage[one]
        birth = 0 if born_at[own] < 0 or anchored[one] else first[one]
        is_last = (stays[own] and not seen[own]) or last[one] < 0
        death[one] = ops if is_last else last[one]
        seen[own] = True
        if birth >= 0:
            change[birth] += size[own]
            change[min(death[one] + 1, ops)] -= size[own]
    written_over = _written_over(op, storage, first, death, over, use_instance, use_at)
    whole = _whole(op, storage, stays, over, written_over, use_instance, use_at)
    for step in range(ops):
        if written_over[step] > 0:
            change[step] -= size[over[op[step], 0]]
            change[step + 1] += size[over[op[step], 0]]
    order = np.argsort(begin[:gaps] * (ops + 1) + end[:gaps], kind="mergesort")
    instance = instance[:gaps][order]
    return (
        np.cumsum(change[:ops]),
        instance,
        begin[:gaps][order],
        end[:gaps][order],
        size[storage[instance]],
        dirty[:gaps][order],
        whole[instance],
        written_over,
    )


@compiled
def _outliving(storage: Integers, count: int) -> Flags:
    """Whether each instance is the first of its storage: the one that outlives the step, if the storage does."""
    outliving = np.zeros(len(storage), np.bool_)
    seen = np.zeros(count, np.bool_)
    for one in range(len(storage)):
        outliving[one] = not seen[storage[one]]
        seen[storage[one]] = True
    return outliving


@compiled
def _written_over(
    op: Integers, storage: Integers, first: Integers, death: Integers, over: Integers, use_instance: Integers,
    use_at: Integers,
) -> Integers:  # fmt: skip
    """For each op the column in `over` of the first operand that dies as the first result is born, or 0."""
    found = np.zeros(len(op), np.int64)
    for use in range(len(use_at)):
        step, one = use_at[use], use_instance[use]
        if storage[one] == over[op[step], 0] and first[one] != step:
            found[step] = -1
    for use in range(len(use_at)):
        step, one = use_at[use], use_instance[use]
        for column in range(1, over.shape[1]):
            if storage[one] == over[op[step], column] and death[one] == step and found[step] != -1:
                found[step] = column if found[step] == 0 else min(column, found[step])
    return np.maximum(found, 0)


@compiled
def _whole(
    op: Integers, storage: Integers, stays: Flags, over: Integers, written_over: Integers, use_instance: Integers,
    use_at: Integers,
) -> Flags:  # fmt: skip
    """Whether each instance moves as a whole or not at all: it outlives the step, or lies below a result that does."""
    whole = stays[storage]
    begin = len(use_at)
    for step in range(len(op) - 1, -1, -1):
        end = begin
        while begin > 0 and use_at[begin - 1] == step:
            begin -= 1
        if written_over[step] > 0:
            result, operand = over[op[step], 0], over[op[step], written_over[step]]
            is_whole = False
            for use in range(begin, end):
                is_whole = is_whole or (storage[use_instance[use]] == result and whole[use_instance[use]])
            for use in range(begin, end):
                if is_whole and storage[use_instance[use]] == operand:
                    whole[use_instance[use]] = True
    return whole
