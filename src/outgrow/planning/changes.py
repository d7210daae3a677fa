"""Which policies are near a policy? Changes of one rest, or of many that are alike.

Each change takes a policy and returns another one, or None where it would change nothing. The larger ones move what
repeats in a network all at once; the smaller ones find where one block has to differ from the others.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from outgrow.planning.sequence import DISCARD
from outgrow.planning.space import Integers, Policy, Space

Change: TypeAlias = Callable[[Space, Policy, np.random.Generator], Policy | None]


def one(space: Space, policy: Policy, random: np.random.Generator) -> Policy | None:
    """Change one rest."""
    return _changed(policy, np.array([_any(space, random)]), _choice(random))


def kind(space: Space, policy: Policy, random: np.random.Generator) -> Policy | None:
    """Change all rests of one kind."""
    return _changed(policy, _kind(space, random), _choice(random))


def stretch_of_kind(space: Space, policy: Policy, random: np.random.Generator) -> Policy | None:
    """Change the rests of one kind within a stretch of the step."""
    return _changed(policy, _stretch(_kind(space, random), random), _choice(random))


def stretch_of_pattern(space: Space, policy: Policy, random: np.random.Generator) -> Policy | None:
    """Change the rests of one pattern within a stretch of the step."""
    return _changed(policy, _stretch(_pattern(space, _any(space, random)), random), _choice(random))


def two(space: Space, policy: Policy, random: np.random.Generator) -> Policy | None:
    """Change two rests, or all of their kinds, each in its own way."""
    changed = policy.copy()
    for _ in range(2):
        members = _kind(space, random) if random.random() < 0.5 else np.array([_any(space, random)])
        changed[members] = _choice(random)
    return None if (changed == policy).all() else changed


def exchange(space: Space, policy: Policy, random: np.random.Generator) -> Policy | None:
    """Let two rests change places."""
    first, second = _any(space, random), _any(space, random)
    if policy[first] == policy[second]:
        return None
    changed = policy.copy()
    changed[first], changed[second] = policy[second], policy[first]
    return changed


def follow(space: Space, policy: Policy, random: np.random.Generator) -> Policy | None:
    """Let some rests in a row of one pattern be like their neighbour: a border between two choices moves."""
    rest = _any(space, random)
    members = _pattern(space, rest)
    at = members.tolist().index(rest)
    count, neighbour = int(random.integers(1, 6)), at + (1 if random.integers(2) else -1)
    if not 0 <= neighbour < len(members):
        return None
    return _changed(policy, members[max(0, at - count + 1) : at + 1], int(policy[members[neighbour]]))


CHANGES: tuple[Change, ...] = (one, one, kind, stretch_of_kind, stretch_of_pattern, two, exchange, follow)


def _any(space: Space, random: np.random.Generator) -> int:
    return int(space.rests[random.integers(len(space.rests))])


def _kind(space: Space, random: np.random.Generator) -> Integers:
    """All rests of the kind of any rest."""
    return space.kinds[int(space.kind_of[_any(space, random)])]


def _pattern(space: Space, rest: int) -> Integers:
    return space.patterns[int(space.pattern_of[rest])]


def _choice(random: np.random.Generator) -> int:
    return int(random.integers(DISCARD + 1))


def _stretch(members: Integers, random: np.random.Generator) -> Integers:
    first, last = sorted(int(at) for at in random.integers(len(members), size=2))
    return members[first : last + 1]


def _changed(policy: Policy, rests: Integers, choice: int) -> Policy | None:
    if (policy[rests] == choice).all():
        return None
    changed = policy.copy()
    changed[rests] = choice
    return changed
