"""What does a step gather outside? Its results, in numbers, in lists, and at other places that it names.

    total += loss.item()
    meter.update(loss.item(), len(x))
    losses.append(loss.item())
    logs["loss"] = loss.detach()
    logs.update(loss=loss.item())

While the step is captured they have no content. So they are results of the graph, as is what the step returns, and each
call leaves its own there.

A number that the step changes, and a list that it reads as well, or a place, would make another step of every call. So
it is traced again, with symbols for such numbers, in place of such lists objects that take what is appended and refuse
whoever reads them, and at such places objects that wait to be replaced. If the step does the same then, it is one step
whatever is there.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from operator import is_
from typing import Any, Self, TypeAlias

import numpy as np
import torch.utils._pytree as pytree
from torch import SymFloat, SymInt

from outgrow.errors import Uncapturable
from outgrow.frontends.user.filling import differ, is_container, refill
from outgrow.frontends.user.left.attributes import has_results, is_empty
from outgrow.frontends.user.left.changes import Change, Changed
from outgrow.frontends.user.left.made import is_made, put_together, taken_apart
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.left.refusing import Read
from outgrow.frontends.user.reach.configuration import NUMBERS, is_settled
from outgrow.frontends.user.reach.containers import open_containers
from outgrow.frontends.user.reach.locations import MISSING, Location
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.frontends.user.training.plain import Numbers, NumberSlot
from outgrow.frontends.user.training.state import OutsideSlot
from outgrow.frontends.user.unreadable import Unreadable

_NUMBERS = (int, float)
_LISTS = (list, deque)
_MOST_ENTRIES = 256
"""Of a larger dictionary no entries are looked at."""


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
        there.extend(put_together(items))


@dataclass(frozen=True, slots=True)
class PlaceSlot:
    """A location outside at which a step puts a result, or something with results in it.

    It is an attribute or an entry of an object of a type, its `owner`, or a variable; whether the step uses, in other
    ways, what is there, it `is_used`.
    """

    key: Hashable
    location: Location = field(compare=False)
    owner: type = field(compare=False)
    is_used: bool = field(compare=False)

    def still_fits(self) -> bool:
        """Whether it can be put there as it was."""
        return type(self.location.owner()) is self.owner

    def leave(self, value: object) -> None:
        """Put what a call does."""
        self.location.write(put_together(value))


GoingOn: TypeAlias = NumberSlot | ListSlot | PlaceSlot
"""What goes on from call to call."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A list, at all locations where it was found, with a copy of what was in it, and what stands there meanwhile."""

    value: Any
    copy: list[object]
    locations: list[Location]
    stand_in: Any

    def among(self, keys: Collection[Hashable]) -> bool:
        """Whether it is at one of these locations."""
        return any(location.key in keys for location in self.locations)

    def place(self) -> Location | None:
        """Return where it still is, or what stands there."""
        return next((location for location in self.locations if location.read() is self.stand_in), None)

    def appended(self) -> list[object]:
        """Return what was appended, to it or to what stands there; nothing if anything else was done."""
        if self.place() is None:
            return []
        if isinstance(self.stand_in, _Taking):
            return self.stand_in.items
        now, count = [*self.stand_in], len(self.copy)
        gone = 0
        if isinstance(self.stand_in, deque) and not self.is_window() and len(now) == self.stand_in.maxlen:
            starts = range(max(0, count - len(now)), count)
            gone = next((at for at in starts if all(map(is_, now, self.copy[at:]))), count)
        stays = len(now) >= count - gone and all(map(is_, now, self.copy[gone:]))
        return now[count - gone :] if stays else []

    def is_window(self) -> bool:
        """Whether one that may be longer stands for a deque of a greatest length."""
        return isinstance(self.stand_in, _Window)

    def now(self) -> list[object]:
        """Return what is in it now, or was appended."""
        return self.stand_in.items if isinstance(self.stand_in, _Taking) else [*self.stand_in]

    def put(self) -> None:
        """Put the other one in its place, wherever that is."""
        if self.stand_in is not self.value:
            for location in self.locations:
                location.write(self.stand_in)


@dataclass(frozen=True, slots=True)
class _Table:
    """A dictionary at a location, and the keys that it had.

    If it `is_blind`, the step writes entries that it does not name, and looks at none of these.
    """

    location: Location
    value: dict[object, object]
    known: tuple[object, ...]
    is_blind: bool

    def is_there(self) -> bool:
        """Whether it is still there, and nothing was just taken out (`frontends.user.left.taken`)."""
        return self.location.own() is self.value and len(self.value) >= len(self.known)

    def place(self, key: object) -> Location:
        """Return where an entry is."""
        return self.location.below((key,))


class Gathering:
    """What of `outside` a step gathers while it is traced. Some of that is `going_on`, and no part of the step then.

    It may append to lists at any of the `locations` that it reaches, and at entries of dictionaries there.
    """

    def __init__(self, outside: Outside, locations: Collection[Location], going_on: Collection[GoingOn]) -> None:
        keys = {slot.key for slot in going_on if isinstance(slot, OutsideSlot | ListSlot | PlaceSlot)}
        replaced = {slot.key for slot in going_on if isinstance(slot, PlaceSlot)}
        self._outside = outside
        self._known = {id(there) for there, _ in outside.belongings.containers}
        self._used = {item.location.key for item in outside.things}
        self._tables = _tables(locations, outside)
        entries = [table.place(key) for table in self._tables for key in table.known]
        held = (location for location in locations if not location.is_in_a_table())
        there = [location for location in held if len(location.path) == 1 or location.owner() is not MISSING]
        self._before = {location.key: (location, location.own()) for location in (*entries, *there)}
        blind = [table.place(key) for table in self._tables if table.is_blind for key in table.known]
        named = {location.key for location in locations}
        self._covered = {place.key: place for place in blind if place.key not in named}
        self._waiting = [place for key, (place, _) in self._before.items() if key in replaced & self._used]
        places = [(at, item) for at, item in enumerate(outside.numbers) if item.location.key in keys]
        self.hyper = {
            OutsideSlot.at(item.location, at): item.value
            for at, item in places
            if _is_finite(item.value) and not self._awaits(item.location)
        }
        """The numbers that are going on, for which there are to be symbols."""
        each = (location for location, _ in self._before.values() if location.key not in self._covered)
        there = (location for location in each if not self._awaits(location))
        self._lists = _lists(there, keys, self._used)
        taking = (held for held in self._lists if isinstance(held.stand_in, _Taking))
        apart = {location.key for held in taking for location in held.locations}
        items = (*outside.numbers, *outside.things)
        apart.update(item.location.key for item in items if self._awaits(item.location))
        self.rest = outside.without(apart.union(slot.key for slot in self.hyper))
        """What is a part of the step."""

    def _awaits(self, location: Location) -> bool:
        """Whether a location is, or is below, one at which something waits to be replaced."""
        return any(location.key == place.key or location.is_below(place) for place in self._waiting)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Within it objects that only take are in the place of lists. Symbols are in that of numbers by now."""
        self._symbols = {slot: slot.location.own() for slot in self.hyper}
        for held in self._lists:
            held.put()
        for place in (*self._waiting, *self._covered.values()):
            place.write(_Waiting(place))
        try:
            yield
        finally:
            stand_ins = [place for held in self._lists if held.stand_in is not held.value for place in held.locations]
            changed = [item.location for item in (*self._placed(), *self._replaced())]
            own = [held for held in self._lists if held.stand_in is held.value]
            appended = [held for held in own if held.appended() or not self._has_results([*held.value])]
            places = (*changed, *self._waiting, *self._covered.values(), *stand_ins)
            for place in sorted(places, key=lambda place: len(place.path)):  # what is below may be of another object
                _, before = self._before.get(place.key, (place, MISSING))
                place.write(before)
            for held in appended:
                if len(held.value) >= len(held.copy) and differ(held.value, held.copy):
                    refill(held.value, held.copy)

    def numbers(self, said: Collection[object], left: object) -> Numbers:
        """Return what has become of numbers, all that the step changes, if it gathers any, or has `said` something.

        Or if it has `left` or returned one of them, as in which step that was.
        """
        made: dict[OutsideSlot, SymInt | SymFloat] = {}
        placed: dict[OutsideSlot, int | float] = {}
        counted: list[object] = []
        others: list[OutsideSlot] = []
        above, placed_keys = self._above(), {slot.key for slot in self._placed()}
        for slot, before, now in self._changed():
            if slot.key in placed_keys or any(map(slot.location.is_below, above)):
                others.append(slot)  # it comes with what is put there
            elif isinstance(now, SymInt | SymFloat):
                made[slot] = now
            elif type(now) in _NUMBERS and type(before) in _NUMBERS:
                placed[slot] = now
                counted += (before, now)
            else:
                others.append(slot)
        kinds = (*map(type, placed.values()), *(slot.kind for slot in (*placed, *others)))
        if not (said or made or self.hyper or float in kinds or _is_among(counted, left)):
            return Numbers()
        slots = (slot for slot in (*made, *placed, *others) if slot not in self.hyper and slot.kind in _NUMBERS)
        return Numbers({}, {**made}, {**placed}, frozenset(slots))

    def _changed(self) -> Iterator[tuple[OutsideSlot, object, Any]]:
        """Yield the slots of numbers that are others now, or something else, with what they were."""
        going_on = {slot.key: slot for slot in self.hyper}
        for place, item in enumerate(self._outside.numbers):
            slot, now = going_on.get(item.location.key), item.location.own()
            if self._awaits(item.location) or now is item.own:
                continue
            if slot is None and (item.changed() is not None or is_empty(now) or type(item.own) in _NUMBERS):
                yield OutsideSlot(item.location.key, item.location, place, type(item.value)), item.value, now
            elif slot is not None and now is not self._symbols[slot]:
                yield slot, item.value, now

    def changed(self, numbers: Numbers) -> tuple[Change, ...]:
        """Return what else the step has put somewhere, beside results and these numbers, or has filled otherwise."""
        told = {slot.key for slot in (*numbers.made, *numbers.placed) if isinstance(slot, OutsideSlot)}
        told.update(slot.key for slot in self._placed())
        others = [item.changed() for item in self._outside.numbers if item.location.key not in told]
        found = [*others, *(item.changed() for item in self.rest.things), *self._replaced()]
        above = self._above()
        return tuple([item for item in found if item is not None and not any(map(item.location.is_below, above))])

    def _above(self) -> list[Location]:
        """Return where something else is: what is below comes with that."""
        things = [found for item in self.rest.things if isinstance(found := item.changed(), Changed)]
        return [item.location for item in (*self._placed(), *self._replaced(), *things)]

    def results(self) -> dict[ListSlot | PlaceSlot, object]:
        """Return what was put somewhere, and what was appended to lists.

        To those that are used only if results are in them: what is filled otherwise is a change.
        """
        found: dict[ListSlot | PlaceSlot, object] = {}
        self._check_windows()
        self._check_unmoved()
        for held in self._lists:
            items, is_used = held.appended(), held.among(self._used)
            location = held.place()
            has_results = self._has_results(items) or self._has_results([*held.value])
            if items and location is not None and (has_results or not is_used):
                found[ListSlot(location.key, location, type(held.value), is_used)] = items
        met = set[int]()
        return {slot: taken_apart(value, self._known, met) for slot, value in {**found, **self._placed()}.items()}

    def _check_windows(self) -> None:
        """Refuse a step that changes a deque of a greatest length, which nobody looks at, otherwise than it may."""
        for held in self._lists:
            is_changed = held.is_window() and not held.appended() and differ(held.now(), held.copy)
            if is_changed and held.place() is not None:
                raise Uncapturable(
                    f"the step does more to `{held.locations[0].name}`, a deque with a maxlen, than to append to it; "
                    f"return what is to be there, and do it after the step{DROP_IN}"
                )

    def _check_unmoved(self) -> None:
        """Refuse a step that puts a list with results at another place: each call would have to move it on."""
        gone = [held for held in self._lists if held.place() is None and self._has_results(held.now())]
        for held in gone:
            there = next((place for place, _ in self._before.values() if place.own() is held.stand_in), None)
            if there is not None:
                name = held.locations[0].name
                raise Uncapturable(
                    f"the step puts the list of `{name}` at `{there.name}`, and results into it, which each call would "
                    f"have to do with another list; return the results, and append them after the step{DROP_IN}"
                )

    def _has_results(self, value: object) -> bool:
        """Whether there is anything in a value that has no content while the step is captured."""
        open_containers(value)
        return has_results(taken_apart(value, self._known))

    def _placed(self) -> dict[PlaceSlot, object]:
        """Return what is somewhere else than it was, and has results in it, with all that lies below it.

        What is new in a dictionary comes with the results that are new there, so that it is in order.
        """
        new, counting = list(self._new()), {item.location.key for item in self._outside.numbers}
        results = [place for place, _, now in new if self._has_results(now)]
        tables = {place.above().key for place in results} & {table.location.key for table in self._tables}
        found: dict[PlaceSlot, object] = {}
        for place, before, now in new:
            is_number = isinstance(now, SymInt | SymFloat)
            is_new = before is MISSING or place.key in self._covered
            comes_along = is_new and place.above().key in tables and (is_number or self._may_come_along(now))
            goes_on = is_number and (place.key in counting or isinstance(before, np.generic))  # which this is none of
            is_own = self._has_results(now) and not goes_on
            if (is_own or comes_along) and not any(map(place.is_below, results)):
                found[PlaceSlot(place.key, place, type(place.owner()), place.key in self._used)] = now
        return found

    def _may_come_along(self, value: object) -> bool:
        return is_settled(value) or is_made(value, self._known)

    def _replaced(self) -> tuple[Changed, ...]:
        """Return where something else is that has a content, or nothing, and nothing else tells: no number or thing."""
        placed, things = {slot.key for slot in self._placed()}, {item.location.key for item in self._outside.things}
        numbers = {item.location.key for item in self._outside.numbers}
        new = ((place, now) for place, _, now in self._new() if place.key not in placed | things)
        others = ((place, now) for place, now in new if not (place.key in numbers and type(now) in NUMBERS))
        return tuple(Changed(*item) for item in others if item[1] is MISSING or is_settled(item[1]))

    def _new(self) -> Iterator[tuple[Location, object, object]]:
        """Yield where something else is than there was, with both, unless that is only a stand-in."""
        tables = [table for table in self._tables if table.is_there()]
        gone = {table.place(key).key for table in tables for key in table.known if key not in table.value}
        come = [table.place(key) for table in tables for key in table.value if key not in table.known]
        keys, stand_ins = {place.key for place in come}, {id(held.stand_in) for held in self._lists}
        for place, before in [item for key, item in self._before.items() if key not in keys]:
            now = place.own()
            is_other = now is not before or (place.key in self._covered and now is not MISSING)
            is_there = now is not MISSING or place.key in gone
            if is_other and is_there and id(now) not in stand_ins and type(now) is not _Waiting:
                yield place, before, now
        yield from ((place, MISSING, place.own()) for place in come)


def _tables(locations: Collection[Location], outside: Outside) -> list[_Table]:
    """Return the dictionaries at some locations, but too large ones."""
    written = {location.above().key for location in locations if location.path[-1] == "update"}
    used, held = {item.location.key for item in outside.things}, {id(item.held) for item in outside.things}
    found: list[_Table] = []
    for location in locations:
        value: Any = location.own()
        if is_container(value) and isinstance(value, dict) and len(value) <= _MOST_ENTRIES:
            is_blind = location.key in written - used and id(value) not in held
            found.append(_Table(location, value, tuple(value), is_blind))
    return found


def _lists(locations: Iterable[Location], going_on: Collection[Hashable], used: Collection[Hashable]) -> list[_Held]:
    """Return the lists and deques at some locations, each once, with what stands there while the step is traced.

    For those that are `used`, and `going_on`, that is what only takes. For a deque of a greatest length that nobody
    looks at it is one without, in which all stays that is appended.
    """
    found: dict[int, tuple[Any, list[Location]]] = {}
    for location in locations:
        value: Any = location.read()
        if type(value) in _LISTS:
            found.setdefault(id(value), (value, []))[1].append(location)
    lists: list[_Held] = []
    for value, places in found.values():
        keys, stand_in = {place.key for place in places}, value
        if not keys.isdisjoint(used):
            stand_in = value if keys.isdisjoint(going_on) else _Taking(places[0], type(value))
        elif isinstance(value, deque) and value.maxlen is not None:
            stand_in = _Window(value)
        lists.append(_Held(value, [*value], places, stand_in))
    return lists


def _is_among(numbers: Collection[object], left: object) -> bool:
    """Whether one of some numbers is in what a step has left."""
    leaves = pytree.tree_leaves(left) if numbers else []
    return any(type(leaf) in _NUMBERS and leaf in numbers for leaf in leaves)


def _is_finite(number: object) -> bool:
    """Whether something is a number for which there may be a symbol, which would not be equal to NaN."""
    return isinstance(number, int | float) and type(number) in _NUMBERS and isfinite(number)


class _Window(deque[object]):
    """Keeps all that is appended to a deque of a greatest length, and says that it has that, too."""

    def __init__(self, value: deque[object]) -> None:
        super().__init__(value)
        self._most = value.maxlen

    maxlen = property(lambda self: self._most)


class _Taking(Unreadable):
    """Takes what is appended to a list, and refuses whoever looks at it otherwise."""

    def __init__(self, place: Location, kind: type) -> None:
        self._name, self._kind = place.name, kind
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


class _Waiting(Unreadable):
    """Is where a step puts something else, and refuses whoever looks at it before."""

    def __init__(self, place: Location) -> None:
        self._name = place.name

    def error(self) -> Read:
        """Return the refusal."""
        return Read(f"the step reads `{self._name}`, in whose place it puts something else")
