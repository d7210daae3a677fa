"""Which ops run, and in what order, when some storages are built again instead of being kept?

For every rest of a storage (see `tables`) a policy says what happens to its bytes:

    KEEP      they stay, on the device or in the next tier
    REBUILD   they are given up; the first op that needs them has them built again, and they stay to the end of the rest
    DISCARD   they are given up; each op that needs them has them built again, and they go with that op

To build a storage again, its chain is repeated directly before the op that needs it. What the chain reads is there, or
is built again first by the same rule. A storage that the policy keeps beyond its last use, because some chain reads it,
lives that long. What a chain makes beside the storage lives as long as the chain. Of a storage that outlives the step,
the rest after its last use says whether it is stowed (`residence`), and the others say nothing.

The result is the sequence of the ops that run, and the *instances* of storages: each time that a storage comes into
being counts as one. Compiled, since the search asks it of thousands of policies.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.planning.arrays import Flags, Integers
from outgrow.planning.compiled import compiled
from outgrow.planning.search.tables import Tables

KEEP, REBUILD, DISCARD = 0, 1, 2
Policy = NDArray[np.int8]
"""For each rest of a storage, one of these."""

_LONGEST = 6
"""A sequence of more than this many times the ops is given up."""


class OpSequence(NamedTuple):
    """What runs under a policy: ops by number, the rebuilding that each belongs to (-1: none), and the instances.

    `culprit` is -1, or the storage that could not be built again; in that case the other fields mean nothing.
    """

    culprit: int
    op: Integers
    rebuilding: Integers
    rebuilt: Integers
    instance_storage: Integers
    use_instance: Integers
    use_at: Integers
    use_writes: Flags


def sequence_of(tables: Tables, policy: Policy) -> OpSequence:
    """Return the sequence of ops under a policy (one entry a rest)."""
    return OpSequence(*expanded(tables, policy))


@compiled
def expanded(  # noqa: C901, PLR0912, PLR0915
    tables: Tables, policy: Policy
) -> tuple[int, Integers, Integers, Integers, Integers, Integers, Integers, Flags]:
    """The fields of `OpSequence`, by a stack of frames in place of a recursion.

    A frame is a chain under way: the captured op at the bottom (`frame_storage` -1), and above it the chain of each
    storage that the frame below waits for. Of a frame are known its rebuilding (`frame_number`), the place in its chain
    and the length of that, the first thing touched by its present op that was not looked at (`frame_touch`), and how
    much had been made when it began (`frame_made`); what it makes beside its storage goes when it is popped. Where an
    op misses a storage, a frame is pushed; where it misses none, it runs, and the frame goes on to the next op of its
    chain, or, after the last, is popped, and its storage is there.
    """
    touch_start, touched, touch_writes = tables.touch_start, tables.touched, tables.touch_writes
    writes, write_start, write_at = tables.writes, tables.write_start, tables.write_at
    touch_use, birth, stays, limit = tables.touch_use, tables.birth, tables.stays, tables.limit
    ops, storages = len(touch_start) - 1, len(birth)
    room = _LONGEST * ops + 16
    out_op = np.empty(room, np.int64)
    out_rebuilding = np.empty(room, np.int64)
    rebuilt = np.empty(room, np.int64)
    use_room = _LONGEST * len(touched) + 16
    instance_storage = np.empty(storages + use_room, np.int64)
    use_instance = np.empty(use_room, np.int64)
    use_at = np.empty(use_room, np.int64)
    use_writes = np.empty(use_room, np.bool_)
    current = np.full(storages, -1, np.int64)
    is_there = np.zeros(storages, np.bool_)
    rest = np.full(storages, -1, np.int64)
    given_up = np.empty(room, np.int64)
    count = uses = instances = rebuildings = 0
    for storage in range(storages):
        if birth[storage] < 0:
            current[storage] = instances
            is_there[storage] = True
            instance_storage[instances] = storage
            instances += 1
    frame_storage = np.empty(storages + 2, np.int64)
    frame_number = np.empty(storages + 2, np.int64)
    frame_place = np.empty(storages + 2, np.int64)
    frame_length = np.empty(storages + 2, np.int64)
    frame_touch = np.empty(storages + 2, np.int64)
    frame_made = np.empty(storages + 2, np.int64)
    made_storage = np.empty(len(touched) + 1, np.int64)
    made_instance = np.empty(len(touched) + 1, np.int64)
    culprit = -1
    for step in range(ops):
        depth, made, discards = 0, 0, 0
        frame_storage[0], frame_number[0], frame_place[0], frame_length[0] = -1, -1, 0, 1
        frame_touch[0], frame_made[0] = touch_start[step], 0
        while depth >= 0:
            target = frame_storage[depth]
            op = step if target < 0 else write_at[write_start[target] + frame_place[depth]]
            touch = frame_touch[depth]
            missing = -1
            while touch < touch_start[op + 1]:
                storage = touched[touch]
                if birth[storage] != op and not is_there[storage]:
                    own = False
                    for at in range(frame_made[depth], made):
                        own = own or made_storage[at] == storage
                    if not own:
                        missing = storage
                        break
                touch += 1
            frame_touch[depth] = touch
            if missing >= 0:
                use = rest[missing]
                if use < 0 or limit[use] < step or depth + 1 >= len(frame_storage) - 1 or rebuildings >= room:
                    culprit = missing
                    break
                depth += 1
                frame_storage[depth], frame_number[depth] = missing, rebuildings
                frame_place[depth], frame_length[depth] = 0, writes[use]
                frame_touch[depth] = touch_start[write_at[write_start[missing]]]
                frame_made[depth] = made
                rebuilt[rebuildings] = missing
                rebuildings += 1
                continue
            if count + 1 >= room or uses + touch_start[op + 1] - touch_start[op] >= use_room:
                culprit = touched[touch_start[op]]
                break
            out_op[count], out_rebuilding[count] = op, frame_number[depth]
            for touch in range(touch_start[op], touch_start[op + 1]):
                storage = touched[touch]
                instance = -1
                if birth[storage] == op:
                    instance = instances
                    instance_storage[instances] = storage
                    instances += 1
                    if target < 0:
                        current[storage], is_there[storage] = instance, True
                    else:
                        made_storage[made], made_instance[made] = storage, instance
                        made += 1
                else:
                    instance = current[storage]
                    for at in range(frame_made[depth], made):
                        if made_storage[at] == storage:
                            instance = made_instance[at]
                use_instance[uses], use_at[uses], use_writes[uses] = instance, count, touch_writes[touch]
                uses += 1
            count += 1
            frame_place[depth] += 1
            if frame_place[depth] < frame_length[depth]:
                frame_touch[depth] = touch_start[write_at[write_start[target] + frame_place[depth]]]
                continue
            if target >= 0:
                for at in range(frame_made[depth], made):
                    if made_storage[at] == target:
                        current[target] = made_instance[at]
                is_there[target] = True
                if policy[rest[target]] == DISCARD:
                    given_up[discards] = target
                    discards += 1
                made = frame_made[depth]
            depth -= 1
        if culprit >= 0:
            break
        for at in range(discards):
            is_there[given_up[at]] = False
        for touch in range(touch_start[step], touch_start[step + 1]):
            storage = touched[touch]
            rest[storage] = touch_use[touch]
            is_there[storage] = stays[storage] or policy[touch_use[touch]] == KEEP
    return (
        int(culprit),
        out_op[:count].copy(),
        out_rebuilding[:count].copy(),
        rebuilt[:rebuildings].copy(),
        instance_storage[:instances].copy(),
        use_instance[:uses].copy(),
        use_at[:uses].copy(),
        use_writes[:uses].copy(),
    )
