"""Which numbers does a step find outside, beside what signatures describe? Those at locations that it reaches by names.

A number, or a word, is part of the graph, so a captured step serves while all of them are as they were. One that the
step itself changes is put back after the capture, and set after each call as the captured step left it. The locations
are found once, at the capture (`frontends.user.reach`), and compared before each call.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types

from outgrow.frontends.user.configuration import NUMBERS, content
from outgrow.frontends.user.locations import Location


@dataclass(frozen=True, slots=True)
class Changed:
    """A number that a step has changed, and what it is afterwards."""

    location: Location
    value: object

    def leave(self) -> None:
        """Set it as the step does."""
        self.location.write(self.value)


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


@dataclass(frozen=True)
class Outside:
    """The numbers outside of a step, at some time."""

    numbers: tuple[Number, ...] = ()

    @staticmethod
    def of(locations: Iterable[Location], signed: frozenset[int] = frozenset()) -> "Outside":
        """Note those at some locations; what is in a module or optimizer of a `signed` identity is in signatures."""
        found = [item for item in map(Number.at, locations) if type(item.value) in NUMBERS or item.location.may_come()]
        return Outside(tuple([item for item in found if not item.location.is_signed(signed)]))

    def still_hold(self) -> bool:
        """Whether all of them are what they were, to the last bit."""
        return all(number.still_holds() for number in self.numbers)

    def changed(self) -> tuple[Changed, ...]:
        """Return those that are other numbers now."""
        found = (number.changed() for number in self.numbers)
        return tuple(item for item in found if item is not None)

    def put_back(self) -> None:
        """Make them what they were, except where something else is now."""
        for number in self.numbers:
            if number.changed() is not None:
                number.location.write(number.own)

    def put_back_emptied(self) -> None:
        """Put back those where now is what has no content."""
        for number in self.numbers:
            if isinstance(number.location.read(), (FakeTensor, *py_sym_types)):
                number.location.write(number.own)


def _is_same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and content(one) == content(other))
