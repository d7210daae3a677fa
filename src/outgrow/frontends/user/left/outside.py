"""What does a step find outside, beside what signatures describe? Numbers, and other things, that it reaches by names.

numbers, words      are part of the graph, so a captured step serves while all of them are as they were
things              that it uses, such as a list of weights, a function, or a tensor, decide what the graph is as well
helpers             modules, scalers and loggers that it runs: `frontends.user.reach.helpers`

What the step itself changes, a number or a container, is put back after the capture, and set after each call as the
captured step left it. The locations are found once, at the capture (`frontends.user.reach.reach`), and compared before
each call.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from types import CodeType, FunctionType

from torch import SymFloat, SymInt, nn

from outgrow.frontends.user.filling import (
    Array,
    Container,
    copied,
    differ,
    entries,
    is_container,
    refill,
)
from outgrow.frontends.user.left.attributes import has_results
from outgrow.frontends.user.left.belongings import Belongings
from outgrow.frontends.user.left.changes import Change, Changed, Filled
from outgrow.frontends.user.reach.configuration import (
    NUMBERS,
    content,
    is_configuration,
    is_opaque,
    is_same,
    is_settled,
)
from outgrow.frontends.user.reach.helpers import Helper, Met
from outgrow.frontends.user.reach.locations import MISSING, Location
from outgrow.frontends.user.reach.reach import Reached
from outgrow.frontends.user.unreadable import Unreadable


@dataclass(frozen=True, slots=True)
class Number:
    """A number at a location, or that none is there; `own` is what is there and not only in the class of its object."""

    location: Location
    value: object
    own: object

    @staticmethod
    def at(location: Location) -> "Number":
        """Return what is there now."""
        return Number(location, location.read(), location.own())

    def still_holds(self) -> bool:
        """Whether it is what it was, to the last bit."""
        return is_same(self.value, self.location.read())

    def changed(self) -> Changed | None:
        """Return what it has become, if that is another number, and one that is there itself."""
        now = self.location.own()
        is_other = now is not self.own if isinstance(now, Unreadable) else not is_same(self.own, now)
        return Changed(self.location, now) if _is_number(now) and is_other else None

    def put_back(self) -> None:
        """Make it what it was, except where something else is now."""
        if self.changed() is not None or isinstance(self.location.own(), SymInt | SymFloat):
            self.location.write(self.own)


@dataclass(frozen=True, slots=True)
class Thing:
    """Something else that a step uses, by what describes it, or by its truth if only that is asked.

    Of a container that is used `by_entries` the numbers that it has count by themselves, at locations of their own, and
    of other entries only the types.

    While the step is captured it is `held`, with a `copy` of what is in a container, or in a small array.
    """

    location: Location
    is_asked: bool
    by_entries: bool
    description: Hashable
    held: object
    copy: Container | Array | None

    @staticmethod
    def at(location: Location, *, is_asked: bool = False, by_entries: bool = False) -> "Thing":
        """Return what is there now."""
        value = location.read()
        description = _described(value, is_asked=is_asked, by_entries=by_entries)
        return Thing(location, is_asked, by_entries, description, value, copied(value))

    def still_holds(self) -> bool:
        """Whether it is described as it was."""
        return self.description == _described(self.location.read(), is_asked=self.is_asked, by_entries=self.by_entries)

    def changed(self) -> Change | None:
        """Return what is there now, if that is something else, and is known by what describes it.

        What has no content is left for others to find, and an object of the user's is the step's own affair.
        """
        now = self.location.read()
        if now is not self.held:
            is_known = not is_opaque(now) and not has_results(now)
            return Changed(self.location, now) if is_known else None
        copy = copied(now)
        if self.copy is None or copy is None or not self._is_refilled(copy) or not is_settled(copy):
            return None
        return Filled(self.location, self.copy, copy)

    def _is_refilled(self, copy: Container | Array) -> bool:
        """Whether there is something else in a container, beside numbers that count by themselves."""
        if self.copy is None or not self.by_entries:
            return self.copy is not None and differ(self.copy, copy, is_same)
        has_other_keys = isinstance(copy, dict) and [*copy] != [*self.copy]
        return has_other_keys or differ([*entries(self.copy)], [*entries(copy)], _is_same_beside_numbers)

    def put_back(self) -> None:
        """Put back what was there, and into a container what was in it."""
        found = self.changed()
        if found is not None and self.copy is not None:
            refill(self.held, self.copy)
        if isinstance(found, Changed):
            self.location.write(self.held)

    def let_go(self) -> "Thing":
        """Return this without what is held for the capture alone."""
        return replace(self, held=None, copy=None)


@dataclass(frozen=True)
class Outside:
    """What is outside of a step, at some time; helpers are noted while it runs.

    `codes` are functions with their code, which a reloader exchanges. What is at all locations, `numbers` and `things`
    or not, are its `belongings` while the step is captured.
    """

    numbers: tuple[Number, ...] = ()
    things: tuple[Thing, ...] = ()
    helpers: tuple[Helper, ...] = ()
    codes: tuple[tuple[FunctionType, CodeType], ...] = ()
    belongings: Belongings = field(default_factory=Belongings)

    @staticmethod
    def of(reached: Reached, signed: frozenset[int] = frozenset()) -> "Outside":
        """Note what is at some locations; what is in a module or optimizer of a `signed` identity is in signatures."""
        locations = [location for location in reached.locations if not location.is_signed(signed)]
        found = [item for item in map(Number.at, locations) if _is_number(item.value) or item.location.may_come()]
        counting = (reached.whole | reached.by_entries | reached.asked) - {item.location.key for item in found}
        used = [item for item in locations if item.key in counting and _counts(item.read())]
        things = [
            Thing.at(item, is_asked=item.key in reached.asked, by_entries=item.key in reached.by_entries)
            for item in used
        ]
        return Outside(tuple(found), tuple(things), codes=reached.codes, belongings=Belongings.of(locations))

    def modules(self) -> Iterator[nn.Module]:
        """Yield the modules among the things, and in lists and dictionaries."""
        for item in self.things:
            several = list(item.held.values()) if isinstance(item.held, dict) else item.held
            for found in several if isinstance(several, list | tuple) else (item.held,):
                if isinstance(found, nn.Module):
                    yield found

    def still_hold(self) -> bool:
        """Whether all of it is what it was, to the last bit."""
        return self.other() is None

    def other(self) -> str | None:
        """Return the name of something that is something else now."""
        met = Met()
        named = (item.location.name for item in (*self.numbers, *self.things) if not item.still_holds())
        run = ("a module, a scaler or a logger that it runs" for item in self.helpers if not item.still_holds(met))
        exchanged = (function.__qualname__ for function, code in self.codes if function.__code__ is not code)
        return next(chain(named, run, exchanged), None)

    def let_go(self) -> "Outside":
        """Return this without what is held for the capture alone."""
        return replace(self, things=tuple([item.let_go() for item in self.things]), belongings=Belongings())

    def without(self, keys: Collection[Hashable]) -> "Outside":
        """Return this without what is at locations of these keys."""
        numbers, things = (
            [item for item in found if item.location.key not in keys] for found in (self.numbers, self.things)
        )
        return replace(self, numbers=tuple(numbers), things=tuple(things))

    def also(self, locations: Iterable[Location]) -> "Outside":
        """Return this with the numbers at more locations."""
        return replace(self, numbers=(*self.numbers, *map(Number.at, locations)))

    def changed(self) -> tuple[Change, ...]:
        """Return what is something else now."""
        found = (item.changed() for item in (*self.numbers, *self.things))
        return tuple(item for item in found if item is not None)

    def put_back(self) -> None:
        """Make it what it was, except where something else is now."""
        for item in (*self.numbers, *self.things):
            item.put_back()


def _is_number(value: object) -> bool:
    """Whether a value is a number, or stands for one that is counted (`frontends.user.left.counts`)."""
    return type(value) in NUMBERS or isinstance(value, Unreadable)


def _counts(value: object) -> bool:
    """Whether something counts by itself: not what is missing, and no configuration, whose attributes do."""
    return value is not MISSING and not is_configuration(value)


def _described(value: object, *, is_asked: bool, by_entries: bool) -> Hashable:
    if value is MISSING:
        return MISSING
    if by_entries and is_container(value):
        return (type(value), tuple(value) if isinstance(value, dict) else None, tuple(map(_kind, entries(value))))
    return (type(value), bool(value) if is_asked and is_container(value) else content(value))


def _is_same_beside_numbers(one: object, other: object) -> bool:
    return (_is_number(one) and _is_number(other)) or is_same(one, other)


def _kind(entry: object) -> type | None:
    """Return the type of an entry that is no number."""
    return None if _is_number(entry) else type(entry)
