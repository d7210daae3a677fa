"""What do the instances of a sequence hold, and where do they rest? `analysis.liveness`, in compiled form.

The seconds and the live bytes of each op of the sequence, workspace included, and every gap between two uses of an
instance that may leave the device, which none does in flight (`ir.flight`). An instance that outlives the step, or that
no op uses, stays to the end; one that is anchored holds its room from the first op on, and has no gaps. One that is
stowed, by the policy of the rest after its last use, has two gaps more: from before the first op (-1) to its first use,
if it exists before the step, and from its last use to behind the last op.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from outgrow.planning.arrays import Flags, Integers, Reals
from outgrow.planning.compiled import compiled
from outgrow.planning.search.sequence import KEEP, OpSequence, Policy
from outgrow.planning.search.tables import Tables


class Gaps(NamedTuple):
    """Rests that a swap may fill, by begin, then end: the instance of a storage that rests, and between which ops.

    `dirty` is False where the same version already rested in an earlier gap (see `analysis.liveness.Gap`), and `whole`
    is True where all of the storage moves or nothing.
    """

    instance: Integers
    begin: Integers
    end: Integers
    size: Integers
    dirty: Flags
    whole: Flags


class Residence(NamedTuple):
    """Seconds and live bytes of each op of a sequence, the gaps by begin, then end, and what is written over.

    `over` has, for each op of the sequence that writes its first result over an operand which dies there, the column
    of that operand in `Tables.over`; else 0.
    """

    seconds: Reals
    live: Integers
    gaps: Gaps
    over: Integers

    @classmethod
    def of(cls, fields: "PlainResidence") -> "Residence":
        """Return what compiled code hands over as plain fields."""
        seconds, live, gaps, over = fields
        return cls(seconds, live, Gaps(*gaps), over)


PlainResidence: TypeAlias = tuple[
    Reals, Integers, tuple[Integers, Integers, Integers, Integers, Flags, Flags], Integers
]
"""The fields of `Residence`, those of `Gaps` among them."""


@compiled
def residence(tables: Tables, sequence: OpSequence, policy: Policy) -> PlainResidence:
    """What the instances of a sequence hold under the policy that the sequence comes from: the fields of `Residence`.

    Of a storage that stays, only the first instance does; others are by-products of building another storage again.
    """
    op, storage = sequence.op, sequence.instance_storage
    is_first = _is_first(storage, len(tables.size))
    stowed = _stowed(is_first, tables.stow_rest[storage], policy)
    anchored = is_first & tables.anchors[storage] & ~stowed
    first, last = _first_and_last(sequence)
    birth = np.where((tables.birth[storage] < 0) | anchored, 0, first)
    death = np.where((is_first & tables.stays[storage]) | (last < 0), len(op), last)
    over = _written_over(tables, sequence, first, death)
    instance, begin, end, dirty = _gaps(tables, sequence, stowed, anchored)
    whole = _whole(tables, sequence, over)[instance]
    return (
        seconds_of(tables, sequence),
        _live(tables, sequence, birth, death, over),
        (instance, begin, end, tables.size[storage[instance]], dirty, whole),
        over,
    )


@compiled
def seconds_of(tables: Tables, sequence: OpSequence) -> Reals:
    """The seconds of each op of a sequence."""
    return np.where(sequence.rebuilding < 0, tables.op_seconds[sequence.op], tables.again_seconds[sequence.op])


@compiled
def _is_first(storage: Integers, count: int) -> Flags:
    """Whether each instance is the first of its storage: the one that outlives the step, if the storage does."""
    is_first = np.zeros(len(storage), np.bool_)
    seen = np.zeros(count, np.bool_)
    for one in range(len(storage)):
        is_first[one] = not seen[storage[one]]
        seen[storage[one]] = True
    return is_first


@compiled
def _stowed(is_first: Flags, rest: Integers, policy: Policy) -> Flags:
    """Whether each instance is stowed, by the policy of its `rest` (-1: it may not)."""
    stowed = np.zeros(len(rest), np.bool_)
    for one in range(len(rest)):
        stowed[one] = is_first[one] and rest[one] >= 0 and policy[rest[one]] != KEEP
    return stowed


@compiled
def _first_and_last(sequence: OpSequence) -> tuple[Integers, Integers]:
    """The ops of the sequence that use each instance first and last; -1 where none does."""
    use_instance, use_at = sequence.use_instance, sequence.use_at
    first = np.full(len(sequence.instance_storage), -1, np.int64)
    last = first.copy()
    for use in range(len(use_at)):
        one = use_instance[use]
        if last[one] < 0:
            first[one] = use_at[use]
        last[one] = use_at[use]
    return first, last


@compiled
def _live(tables: Tables, sequence: OpSequence, birth: Integers, death: Integers, over: Integers) -> Integers:
    """The bytes at each op, workspace included; what is written over an operand takes none while that is there."""
    op, ops, size = sequence.op, len(sequence.op), tables.size[sequence.instance_storage]
    change = np.zeros(ops + 2, np.int64)
    for one in range(len(size)):
        if birth[one] >= 0:
            change[birth[one]] += size[one]
            change[death[one] + 1] -= size[one]
    for step in range(ops):
        if over[step] > 0:
            shared = tables.size[tables.over[op[step], 0]]
            change[step] -= shared
            change[step + 1] += shared
    return np.cumsum(change[:ops]) + tables.op_workspace[op]


@compiled
def _gaps(
    tables: Tables, sequence: OpSequence, stowed: Flags, anchored: Flags
) -> tuple[Integers, Integers, Integers, Flags]:
    """The instance, begin and end of each gap, and whether it is dirty, by begin, then end."""
    op, storage, use_instance = sequence.op, sequence.instance_storage, sequence.use_instance
    use_at, use_writes = sequence.use_at, sequence.use_writes
    moves, born_at, lends = tables.moves[storage] & ~anchored, tables.birth, tables.lends[op]
    ops, count, uses = len(op), len(storage), len(use_at)
    last, lent = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    wrote_last, wrote, rested = np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    room = uses + 2 * count
    instance, begin, end = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    dirty = np.empty(room, np.bool_)
    gaps = 0
    for use in range(uses):
        one, at, writes = use_instance[use], use_at[use], use_writes[use]
        if last[one] < 0:
            if stowed[one] and born_at[storage[one]] < 0:
                instance[gaps], begin[gaps], end[gaps], dirty[gaps] = one, -1, at, False
                gaps += 1
                rested[one] = True
        elif moves[one]:
            rested[one] = rested[one] and not wrote_last[one]
            if at - last[one] > 1 and lent[one] == 0:
                instance[gaps], begin[gaps], end[gaps], dirty[gaps] = one, last[one], at, not rested[one]
                gaps += 1
                rested[one] = True
        last[one], wrote_last[one], wrote[one] = at, writes, wrote[one] or writes
        is_wire = writes and lends[at] > 0 and born_at[storage[one]] != op[at]
        lent[one] += 0 if is_wire else lends[at]
    for one in range(count):
        if stowed[one] and last[one] >= 0:
            instance[gaps], begin[gaps], end[gaps], dirty[gaps] = one, last[one], ops, wrote[one]
            gaps += 1
    order = np.argsort(begin[:gaps] * (ops + 1) + end[:gaps], kind="mergesort")
    return instance[:gaps][order], begin[:gaps][order], end[:gaps][order], dirty[:gaps][order]


@compiled
def _written_over(tables: Tables, sequence: OpSequence, first: Integers, death: Integers) -> Integers:
    """For each op the column in `over` of the first operand that dies as the first result is born, or 0."""
    op, storage, over = sequence.op, sequence.instance_storage, tables.over
    use_instance, use_at = sequence.use_instance, sequence.use_at
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
def _whole(tables: Tables, sequence: OpSequence, written_over: Integers) -> Flags:
    """Whether each instance moves as a whole or not at all: it outlives the step, or lies below a result that does."""
    op, storage, over = sequence.op, sequence.instance_storage, tables.over
    use_instance, use_at = sequence.use_instance, sequence.use_at
    whole = tables.stays[storage]
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


@compiled
def without(live: Integers, begin: Integers, end: Integers, moved: Integers) -> Integers:
    """Live bytes at each op without those that are moved over the gaps."""
    change = np.zeros(len(live) + 1, np.int64)
    for gap in range(len(begin)):
        change[begin[gap] + 1] -= moved[gap]
        change[end[gap]] += moved[gap]
    return live + np.cumsum(change[: len(live)])
