"""Which containers does a step make anew? Those that are other objects when it is traced again.

    self.logs = {}

What a captured step puts into attributes, and outside, it puts there after each call, and what it returns it returns
from each. Were that the same object every time, it would have what the loop has put into it since. So containers,
arrays and configurations that the step makes are copied for each call. Those that it finds, as where it exchanges two
lists, stay what they are.
"""

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from outgrow.frontends.user.filling import entries, is_container, is_filled, refill
from outgrow.frontends.user.left.changes import Change, Changed
from outgrow.frontends.user.left.counts import Did
from outgrow.frontends.user.reach.configuration import is_configuration

Made = dict[int, object]
"""What is put in the place of containers in one call, by their identities: what several attributes have is one."""


def made_anew(did: Did, traced_anew: Callable[[], Did]) -> frozenset[int]:
    """Return the identities of the containers that a step makes; it is traced again if it puts or returns any."""
    first = {item.location.key: item.value for item in _left(did) if any(map(_is_held, _new(item)))}
    if not first and not any(map(_is_held, did.returned)):
        return frozenset()
    other = traced_anew()
    again = {item.location.key: item.value for item in _left(other)}
    pairs = [(value, again[key]) for key, value in first.items() if key in again]
    pairs += zip(did.returned, other.returned, strict=False)
    return frozenset(id(value) for one, another in pairs for value in _made(one, another))


def renewed(item: Change, anew: frozenset[int], made: Made) -> Change:
    """Return what is to be left after a call, with other containers in place of those that the step makes."""
    return replace(item, value=copied(item.value, anew, made)) if anew else item


def _left(did: Did) -> Iterator[Change]:
    yield from did.settled
    yield from did.changed


def _new(item: Change) -> Iterator[object]:
    """Yield what the step puts somewhere."""
    if isinstance(item, Changed):
        yield item.value
        return
    known = {id(entry) for entry in entries(item.before)}
    yield from (entry for entry in entries(item.value) if id(entry) not in known)


def _is_held(value: object) -> bool:
    """Whether a value can be changed in place, or is a tuple with such ones in it."""
    return any(map(_is_held, value)) if type(value) is tuple else is_filled(value) or is_configuration(value)


def _parts(value: object) -> list[object]:
    """Return what is in a container, a tuple or a configuration, in order; in a set there are none of these."""
    if is_configuration(value):
        return list(vars(value).values())
    if isinstance(value, tuple | list | deque | dict):
        return list(value.values() if isinstance(value, dict) else value)
    return []


def _made(one: object, other: object) -> Iterator[object]:
    """Yield the containers in a value, and the tuples, that are others in another value."""
    if one is other or type(one) is not type(other) or not _is_held(one):
        return
    yield one
    inside, others = _parts(one), _parts(other)
    if len(inside) == len(others):
        for item, another in zip(inside, others, strict=True):
            yield from _made(item, another)


def copied(value: Any, anew: frozenset[int], made: Made) -> Any:
    """Return a value with copies in place of what is made anew, each for all places where it is."""
    if id(value) not in anew or id(value) in made:
        return made.get(id(value), value)
    inside = [copied(item, anew, made) for item in _parts(value)]
    if type(value) is tuple:
        found: Any = tuple(inside)
    elif is_configuration(value):
        found = copy(value)
        vars(found).update(zip(vars(value), inside, strict=True))
    else:
        found = value.copy()
        if is_container(value) and inside:
            refill(found, dict(zip(value, inside, strict=True)) if isinstance(value, dict) else inside)
    made[id(value)] = found
    return found
