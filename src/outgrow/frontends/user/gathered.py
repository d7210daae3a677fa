"""What does a step gather outside? Its results, in numbers, in lists, and at other places that it names.

    total += loss.item()
    meter.update(loss.item(), len(x))
    losses.append(loss.item())
    logs["loss"] = loss.detach()

While the step is captured they have no content. So they are results of the graph, as is what the step returns, and each
call leaves its own there.

A number that the step changes, and a list that it reads as well, would make another step of every call. So it is traced
again, with symbols for such numbers, and in place of such lists objects that take what is appended and refuse whoever
reads them. If the step does the same then, it is one step whatever is there.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from operator import is_
from typing import Any, Self, TypeAlias, cast

import torch.utils._pytree as pytree
from torch import SymFloat, SymInt

from outgrow.frontends.user.attributes import Read, is_empty
from outgrow.frontends.user.filling import refill
from outgrow.frontends.user.locations import Location
from outgrow.frontends.user.outside import Outside
from outgrow.frontends.user.plain import Numbers, NumberSlot
from outgrow.frontends.user.state import OutsideSlot
from outgrow.frontends.user.unreadable import Unreadable

_NUMBERS = (int, float)
_LISTS = (list, deque)


@dataclass(frozen=True, slots=True)
class ListSlot:
    """A list of a `kind`, or a deque, outside, to which a step appends; whether it `is_used` in other ways, too."""

    key: Hashable
    location: Location = field(compare=False)
    kind: type = field(compare=False)
    is_used: bool = field(compare=False)

    def still_fits(self) -> bool:
        """Whether one of the same kind is there."""
        return type(self.location.read()) is self.kind

    def leave(self, items: Any) -> None:
        """Append what a call does."""
        there: Any = self.location.read()
        there.extend(items)


@dataclass(frozen=True, slots=True)
class PlaceSlot:
    """A location outside at which a step puts a result, or something with results in it."""

    key: Hashable
    location: Location = field(compare=False)

    def still_fits(self) -> bool:
        """Whether it can be put there: always."""
        return True

    def leave(self, value: object) -> None:
        """Put what a call does."""
        self.location.write(value)


GoingOn: TypeAlias = NumberSlot | ListSlot
"""What goes on from call to call."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A list, at all locations where it was found, with a copy of what was in it."""

    value: Any
    copy: list[object]
    locations: list[Location]

    def among(self, keys: Collection[Hashable]) -> bool:
        """Whether it is at one of these locations."""
        return any(location.key in keys for location in self.locations)

    def appended(self) -> list[object]:
        """Return what was appended, to it or to what has taken its place; nothing if anything else was done."""
        there = self.locations[0].read()
        if type(there) is _Taking:
            return there.items
        now, most = [*self.value], getattr(self.value, "maxlen", None)
        going = len(self.copy) if most is not None and len(now) == most else 0
        for gone in range(going + 1 if there is self.value else 0):  # from the left, where a deque is full
            stays = self.copy[gone:]
            if len(now) >= len(stays) and all(map(is_, now, stays)):
                return now[len(stays) :]
        return []

    def put(self, value: object) -> None:
        """Put something in its place, wherever that is."""
        for location in self.locations:
            location.write(value)


class Gathering:
    """What of `outside` a step gathers while it is traced. Some of that is `going_on`, and no part of the step then.

    It may append to lists at any of the `locations` that it reaches.
    """

    def __init__(self, outside: Outside, locations: Iterable[Location], going_on: Collection[GoingOn]) -> None:
        keys = {slot.key for slot in going_on if isinstance(slot, OutsideSlot | ListSlot)}
        self._outside = outside
        places = [(at, item) for at, item in enumerate(outside.numbers) if item.location.key in keys]
        self.hyper = {OutsideSlot.at(item.location, at): item.value for at, item in places if _is_finite(item.value)}
        """The numbers that are going on, for which there are to be symbols."""
        self._plain = {item.location.key for item in outside.numbers if type(item.value) in _NUMBERS}
        self._used = {item.location.key for item in outside.things}
        self._before = {place.key: (place, place.own()) for place in locations if not place.is_in_a_table()}
        self._lists = _lists(location for location, _ in self._before.values())
        self._exchanged = [held for held in self._lists if held.among(keys) and held.among(self._used)]
        lists = {location.key for held in self._exchanged for location in held.locations}
        self.rest = outside.without(lists.union(slot.key for slot in self.hyper))
        """What is a part of the step."""

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Within it objects that only take are in the place of lists. Symbols are in that of numbers by now."""
        self._symbols = {slot: slot.location.own() for slot in self.hyper}
        for held in self._exchanged:
            held.put(_Taking(held))
        try:
            yield
        finally:
            for held in self._exchanged:
                held.put(held.value)
            for held in self._lists:
                if held.appended():
                    refill(held.value, held.copy)
            for slot in self._placed():
                _, before = self._before[slot.location.key]
                slot.leave(before)

    def numbers(self, said: Collection[object]) -> Numbers:
        """Return what has become of numbers, all that the step changes, if it gathers any, or has `said` something."""
        made: dict[OutsideSlot, SymInt | SymFloat] = {}
        placed: dict[OutsideSlot, int | float | None] = {}
        above = [slot.location for slot in self._placed()]
        for slot, before, now in self._changed():
            if any(slot.location.is_below(location) for location in above):
                continue  # it comes with what is put there
            if isinstance(now, SymInt | SymFloat) and slot.kind in _NUMBERS:
                made[slot] = now
            elif type(before) in _NUMBERS and isinstance(now, int | float | None) and not isinstance(now, bool):
                placed[slot] = now
        has_floats = any(float in (type(number), slot.kind) for slot, number in placed.items())
        if not (said or made or self.hyper or has_floats):
            return Numbers()
        untraced = frozenset(slot for slot in (*made, *placed) if slot not in self.hyper)
        return Numbers({}, {**made}, {**placed}, untraced)

    def _changed(self) -> Iterator[tuple[OutsideSlot, object, Any]]:
        """Yield the slots of numbers that are others now, with what they were."""
        going_on = {slot.key: slot for slot in self.hyper}
        for place, item in enumerate(self._outside.numbers):
            slot, now = going_on.get(item.location.key), item.location.own()
            if slot is not None and now is not self._symbols[slot]:
                yield slot, item.value, now
            elif slot is None and (item.changed() is not None or isinstance(now, SymInt | SymFloat)):
                yield OutsideSlot(item.location.key, item.location, place, type(item.value)), item.value, now

    def results(self) -> dict[ListSlot | PlaceSlot, object]:
        """Return what was put somewhere, and what was appended to lists: to those that are used, only with results."""
        found: dict[ListSlot | PlaceSlot, object] = {}
        for held in self._lists:
            items, is_used = held.appended(), held.among(self._used)
            if items and (_has_results(items) or not is_used):
                location = held.locations[0]
                found[ListSlot(location.key, location, type(held.value), is_used)] = items
        return {**found, **self._placed()}

    def _placed(self) -> dict[PlaceSlot, object]:
        """Return what is at a place where something else was, and has results in it, with all that lies below it.

        Numbers that take the place of others are left out: they go on. Entries are in the order of their dictionary.
        """
        pairs = [(place, place.own(), before) for place, before in self._before.values()]
        new = [(place, now) for place, now, before in pairs if now is not before and _has_results(now)]
        above = [place for place, _ in new]
        found = [
            (place, now)
            for place, now in new
            if not (isinstance(now, SymInt | SymFloat) and place.key in self._plain)
            and not any(map(place.is_below, above))
        ]
        return {PlaceSlot(place.key, place): now for place, now in sorted(found, key=lambda item: item[0].turn())}


def _has_results(value: object) -> bool:
    """Whether there is anything in a value that has no content while the step is captured."""
    return type(value) is not _Taking and any(map(is_empty, pytree.tree_leaves(value)))


def _lists(locations: Iterable[Location]) -> list[_Held]:
    """Return the lists and deques at some locations, each once."""
    found: dict[int, _Held] = {}
    for location in locations:
        value = cast("Any", location.read())
        if type(value) in _LISTS:
            found.setdefault(id(value), _Held(value, [*value], [])).locations.append(location)
    return list(found.values())


def _is_finite(number: object) -> bool:
    """Whether something is a number for which there may be a symbol, which would not be equal to NaN."""
    return isinstance(number, int | float) and type(number) in _NUMBERS and isfinite(number)


class _Taking(Unreadable):
    """Takes what is appended to a list, and refuses whoever looks at it otherwise."""

    def __init__(self, held: _Held) -> None:
        self._name, self._kind = held.locations[0].name, type(held.value)
        self.items: list[object] = []

    __class__ = property(lambda self: self._kind)  # for those who ask what it is

    def append(self, item: object) -> None:
        """Take an item."""
        self.items.append(item)

    def extend(self, items: Iterable[object]) -> None:
        """Take some items."""
        self.items.extend(items)

    def __iadd__(self, items: Iterable[object]) -> Self:
        self.items.extend(items)
        return self

    def error(self) -> Read:
        """Return the refusal."""
        return Read(f"the step reads `{self._name}`, to which it appends")
