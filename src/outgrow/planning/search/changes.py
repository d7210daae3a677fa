"""Which policies are near a policy? Changes of one rest, or of many that are alike.

Each change edits a policy. The larger ones move what repeats in a network all at once; the smaller ones find where one
block has to differ from the others.

    one          one rest
    kind         all rests of one kind, or those within a stretch of the step
    pattern      the rests of one pattern within a stretch of the step
    two          two rests, or all of their kinds, each in its own way
    exchange     two rests change places
    follow       some rests in a row of one pattern become like their neighbour: a border between two choices moves
    block        rests in a row, of whatever pattern, become like the rests equally far away in their patterns

In half of the changes the rest is any; in the others it is the likelier the larger its storage is, since in most steps
a few storages hold most of the bytes.
"""

from typing import NamedTuple

import numpy as np

from outgrow.planning.arrays import Integers
from outgrow.planning.compiled import compiled
from outgrow.planning.search.sequence import DISCARD, Policy

_LONGEST_BLOCK = 24
"""How many rests one change of a block edits, at most."""


class Alike(NamedTuple):
    """The rests that may be rebuilt, in order of time, and in groups: members `start[group_of]:start[group_of + 1]`.

    `until_bytes` are the bytes of the storages of all rests up to each.
    """

    rests: Integers
    until_bytes: Integers
    kind_of: Integers
    kind_start: Integers
    kind_members: Integers
    pattern_of: Integers
    pattern_start: Integers
    pattern_members: Integers


@compiled
def change(alike: Alike, policy: Policy, random: np.random.Generator) -> None:
    """Edit a policy by one change, any of those above."""
    which = random.integers(0, 9)
    rest = _any(alike, random)
    if which < 2:
        policy[rest] = _choice(random)
    elif which == 2:
        policy[_kind(alike, rest)] = _choice(random)
    elif which == 3:
        policy[_stretch(_kind(alike, rest), random)] = _choice(random)
    elif which == 4:
        policy[_stretch(_pattern(alike, rest), random)] = _choice(random)
    elif which == 5:
        for one in (rest, _any(alike, random)):
            if random.random() < 0.5:
                policy[_kind(alike, one)] = _choice(random)
            else:
                policy[one] = _choice(random)
    elif which == 6:
        other = _any(alike, random)
        policy[rest], policy[other] = policy[other], policy[rest]
    elif which == 7:
        _follow(_pattern(alike, rest), rest, policy, random)
    else:
        _block(alike, rest, policy, random)


@compiled
def _block(alike: Alike, rest: np.int64, policy: Policy, random: np.random.Generator) -> None:
    members = _pattern(alike, rest)
    shift = random.integers(0, len(members)) - _place(members, rest)
    first = _place(alike.rests, rest)
    before = policy.copy()
    for one in alike.rests[first : first + random.integers(2, _LONGEST_BLOCK)]:
        members = _pattern(alike, one)
        other = _place(members, one) + shift
        if 0 <= other < len(members):
            policy[one] = before[members[other]]


@compiled
def _place(members: Integers, rest: np.int64) -> int:
    """The place of a rest among others."""
    at = 0
    while members[at] != rest:
        at += 1
    return at


@compiled
def _follow(members: Integers, rest: np.int64, policy: Policy, random: np.random.Generator) -> None:
    at = _place(members, rest)
    count = random.integers(1, 6)
    neighbour = at + (1 if random.integers(0, 2) else -1)
    if 0 <= neighbour < len(members):
        policy[members[max(0, at - count + 1) : at + 1]] = policy[members[neighbour]]


@compiled
def _any(alike: Alike, random: np.random.Generator) -> np.int64:
    """Any rest, or one by the bytes of its storage."""
    if random.random() < 0.5:
        return alike.rests[random.integers(0, len(alike.rests))]
    byte = random.random() * float(alike.until_bytes[-1])
    return alike.rests[int(np.searchsorted(alike.until_bytes, byte, side="right"))]


@compiled
def _kind(alike: Alike, rest: np.int64) -> Integers:
    """All rests of the kind of a rest."""
    kind = alike.kind_of[rest]
    return alike.kind_members[alike.kind_start[kind] : alike.kind_start[kind + 1]]


@compiled
def _pattern(alike: Alike, rest: np.int64) -> Integers:
    pattern = alike.pattern_of[rest]
    return alike.pattern_members[alike.pattern_start[pattern] : alike.pattern_start[pattern + 1]]


@compiled
def _choice(random: np.random.Generator) -> np.int64:
    return random.integers(0, DISCARD + 1)


@compiled
def _stretch(members: Integers, random: np.random.Generator) -> Integers:
    one, other = random.integers(0, len(members)), random.integers(0, len(members))
    return members[min(one, other) : max(one, other) + 1]
