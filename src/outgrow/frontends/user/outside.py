"""What does a step find outside, beside what signatures describe? Numbers, and other things, that it reaches by names.

numbers, words      are part of the graph, so a captured step serves while all of them are as they were
things              that it uses as a whole, a list of weights, a function, a tensor, tell what the graph is, too
helpers             modules and scalers that it runs: `frontends.user.helpers`

What the step itself changes, a number or a container, is put back after the capture, and set after each call as the
captured step left it. The locations are found once, at the capture (`frontends.user.reach`), and compared before each
call.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types

from outgrow.frontends.user.attributes import Container, is_container, refill
from outgrow.frontends.user.configuration import NUMBERS, content, is_opaque, is_settled
from outgrow.frontends.user.helpers import Helper
from outgrow.frontends.user.locations import MISSING, Location
from outgrow.frontends.user.reach import Reached


@dataclass(frozen=True, slots=True)
class Changed:
    """A number, or a thing, that a step has changed, and what it is afterwards."""

    location: Location
    value: object

    def leave(self) -> None:
        """Set it as the step does."""
        _leave(self.location, self.value)


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
        return _is_same(self.value, self.location.read())

    def changed(self) -> Changed | None:
        """Return what it has become, if that is another number, and one that is there itself."""
        now = self.location.own()
        return Changed(self.location, now) if type(now) in NUMBERS and not _is_same(self.own, now) else None

    def put_back(self) -> None:
        """Make it what it was, except where something else is now."""
        if self.changed() is not None:
            self.location.write(self.own)


@dataclass(frozen=True, slots=True)
class Thing:
    """Something else that a step uses as a whole, by what describes it; `copy` is what was in a container."""

    location: Location
    description: Hashable
    copy: Container | None

    @staticmethod
    def at(location: Location) -> "Thing":
        """Return what is there now."""
        value = location.read()
        return Thing(location, _described(value), _copy(value))

    def still_holds(self) -> bool:
        """Whether it is described as it was."""
        return self.description == _described(self.location.read())

    def changed(self) -> Changed | None:
        """Return what is in a container now, if that is something else, and is known by its description."""
        now = self.location.read()
        is_other = self.copy is not None and is_container(now) and not self.still_holds()
        return Changed(self.location, _copy(now)) if is_other and is_settled(now) else None

    def put_back(self) -> None:
        """Let the container have what it had."""
        if self.copy is not None and self.changed() is not None:
            _leave(self.location, self.copy)


@dataclass(frozen=True)
class Outside:
    """What is outside of a step, at some time; helpers are noted while it runs."""

    numbers: tuple[Number, ...] = ()
    things: tuple[Thing, ...] = ()
    helpers: tuple[Helper, ...] = ()

    @staticmethod
    def of(reached: Reached, signed: frozenset[int] = frozenset()) -> "Outside":
        """Note what is at some locations; what is in a module or optimizer of a `signed` identity is in signatures."""
        locations = [location for location in reached.locations if not location.is_signed(signed)]
        found = [item for item in map(Number.at, locations) if type(item.value) in NUMBERS or item.location.may_come()]
        noted = {item.location.key for item in found}
        things = [item for item in locations if item.key in reached.whole and item.key not in noted]
        return Outside(tuple(found), tuple([Thing.at(item) for item in things if not is_opaque(item.read())]))

    def still_hold(self) -> bool:
        """Whether all of it is what it was, to the last bit."""
        return all(item.still_holds() for item in (*self.numbers, *self.things, *self.helpers))

    def changed(self) -> tuple[Changed, ...]:
        """Return what is something else now."""
        found = (item.changed() for item in (*self.numbers, *self.things))
        return tuple(item for item in found if item is not None)

    def put_back(self) -> None:
        """Make it what it was, except where something else is now."""
        for item in (*self.numbers, *self.things):
            item.put_back()

    def put_back_emptied(self) -> None:
        """Put back numbers where now is what has no content."""
        for number in self.numbers:
            if isinstance(number.location.read(), (FakeTensor, *py_sym_types)):
                number.location.write(number.own)


def _leave(location: Location, value: object) -> None:
    """Set a number, or let a container that is there have what is in another one of its kind."""
    there = location.read()
    if is_container(value) and type(there) is type(value):
        refill(there, value)
    else:
        location.write(value)


def _copy(value: object) -> Container | None:
    return value.copy() if is_container(value) else None


def _described(value: object) -> Hashable:
    return (type(value), None if value is MISSING else content(value))


def _is_same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and content(one) == content(other))
