"""Which decisions does a trial mean? From arrays back to recomputations, re-uses, swaps and stowings, with names.

The law of recomputation repeats one chain directly before one op. Decisions are applied from the end of the sequence to
its beginning, so each finds the op before which its chain has to stand: what comes later is there already. Then results
are written over operands that now die, from the beginning to the end. At last comes what moves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from outgrow.plan import Decision, Piece, Recompute, Reuse, Stow, Swap
from outgrow.planning.arrays import Integers
from outgrow.planning.search.annealing import Trial, conditions_of, scheduled
from outgrow.planning.search.residence import Gaps, Residence
from outgrow.planning.search.sequence import OpSequence, sequence_of
from outgrow.planning.search.space import Space
from outgrow.planning.search.transfers import Transfers
from outgrow.rewriting.recompute import unused_suffix


def decisions_of(space: Space, trial: Trial) -> tuple[Decision, ...]:
    """Return the decisions that a trial means: the same schedule once more, with the names of what it moves."""
    sequence = sequence_of(space.tables, trial.policy)
    held, moved = scheduled(conditions_of(space), sequence, trial.policy, trial.rule)
    found = Residence.of(held)
    names = named(space, sequence, found.over)
    storages = [names.instances[int(instance)] for instance in found.gaps.instance]
    return (*names.decisions, *_transferred(names.ops, storages, found.gaps, Transfers(*moved)))


@dataclass(frozen=True)
class Named:
    """The decisions, in the order in which they are applied; the names of the ops and of the instances."""

    decisions: tuple[Recompute | Reuse, ...]
    ops: tuple[str, ...]
    instances: tuple[str, ...]


def named(space: Space, sequence: OpSequence, over: Integers) -> Named:
    """Return the decisions that turn the space's graph into the sequence; `over` is that of its `Residence`."""
    captured = [op.name for op in space.graph.ops]
    original = [captured[int(op)] for op in sequence.op]
    ops = list(original)
    places: list[list[int]] = [[] for _ in sequence.rebuilt]
    for at in np.flatnonzero(sequence.rebuilding >= 0):
        places[int(sequence.rebuilding[at])].append(int(at))
    made = _made(space, sequence)
    names = [space.names[int(storage)] for storage in sequence.instance_storage]
    used_ops, used_storages = set(captured), set(space.names)
    decisions: list[Recompute | Reuse] = []
    for number in sorted(range(len(places)), key=lambda number: places[number][-1], reverse=True):
        chain = [original[at] for at in places[number]]
        storages = [names[instance] for instance in made[number]]
        suffix = unused_suffix(chain, storages, used_ops.__contains__, used_storages.__contains__)
        for at, name in zip(places[number], chain, strict=True):
            ops[at] = name + suffix
        used_ops.update(name + suffix for name in chain)
        used_storages.update(name + suffix for name in storages)
        for instance in made[number]:
            names[instance] += suffix
        decisions.append(Recompute(space.names[int(sequence.rebuilt[number])], ops[places[number][-1] + 1]))
    reuses = _reuses(space, sequence, ops, over)
    return Named((*decisions, *reuses), tuple(ops), _homes(space, sequence, names, over))


def _made(space: Space, sequence: OpSequence) -> list[list[int]]:
    """Return the instances that each rebuilding brings into being."""
    made: list[list[int]] = [[] for _ in sequence.rebuilt]
    first = np.full(len(sequence.instance_storage), -1, dtype=np.int64)
    first[sequence.use_instance[::-1]] = sequence.use_at[::-1]
    for instance, at in enumerate(first):
        is_born = at >= 0 and space.tables.birth[sequence.instance_storage[instance]] == sequence.op[at]
        if is_born and sequence.rebuilding[at] >= 0:
            made[int(sequence.rebuilding[at])].append(instance)
    return made


def _reuses(space: Space, sequence: OpSequence, names: Sequence[str], over: Integers) -> Iterator[Reuse]:
    """The decisions to write results over operands."""
    for at in np.flatnonzero(over):
        op = space.graph.ops[int(sequence.op[at])]
        target = space.names[int(space.tables.over[sequence.op[at], over[at]])]
        own = [place for place, value in enumerate(op.references) if space.graph.values[value].storage == target]
        yield Reuse(names[int(at)], own[0])


def _homes(space: Space, sequence: OpSequence, names: Sequence[str], over: Integers) -> tuple[str, ...]:
    """The storage in which each instance lies: its own, or that over which it is written."""
    homes = list(names)
    uses = np.searchsorted(sequence.use_at, np.arange(len(sequence.op) + 1))
    for at in np.flatnonzero(over):
        used = sequence.use_instance[uses[at] : uses[at + 1]]
        own = space.tables.over[sequence.op[at]]
        result, operand = (
            next(int(one) for one in used if sequence.instance_storage[one] == own[column]) for column in (0, over[at])
        )
        homes[result] = homes[operand]
    return tuple(homes)


def _transferred(ops: Sequence[str], storages: Sequence[str], gaps: Gaps, found: Transfers) -> tuple[Stow | Swap, ...]:
    """Return what a schedule stows and what it swaps, given the names of ops and of the gaps' storages.

    The decisions stand in the order in which what moves is used again: in that order copies come back where several
    begin before one op.
    """
    pieces: dict[int, list[Piece]] = {}
    parts = zip(found.piece_gap, found.piece_begin, found.piece_end, found.piece_before, strict=True)
    for gap, begin, end, before in parts:
        pieces.setdefault(int(gap), []).append(Piece(int(begin), int(end), ops[int(before)]))
    heads = {storages[gap]: gap for gap in map(int, np.flatnonzero(gaps.begin < 0))}
    decisions: list[tuple[tuple[int, int], Stow | Swap]] = []
    for gap in [int(gap) for gap in np.flatnonzero(found.dropped >= 0)]:
        after = None if found.is_clean[gap] else ops[int(gaps.begin[gap])]
        dropped = None if found.dropped[gap] == len(ops) else ops[int(found.dropped[gap])]
        if gaps.end[gap] == len(ops):
            head = heads.get(storages[gap], -1)
            first = None if head < 0 else ops[int(gaps.end[head])]
            stow = Stow(storages[gap], tuple(pieces.get(head, ())), first, after, dropped)
            decisions.append(((-1 if head < 0 else int(gaps.end[head]), -1), stow))
        else:
            assert dropped is not None, "what comes back for an op is dropped before it"
            swap = Swap(storages[gap], after, dropped, tuple(pieces[gap]), ops[int(gaps.end[gap])])
            decisions.append(((int(gaps.end[gap]), int(gaps.begin[gap])), swap))
    return tuple(decision for _, decision in sorted(decisions, key=itemgetter(0)))
