"""Which whole numbers does a step only count up? Then it is the same step whatever they are.

    self.global_step += 1

    if self.global_step % 4 == 0:

Numbers that a step finds outside, or in attributes of modules, are constants of its capture, so each call that changes
one would have to be captured anew. Therefore a step that changes some is traced again with an object in place of each,
which can be added to, divided for its remainder, and compared, and refuses to be looked at otherwise. If the step does
the same then, only the outcomes of these comparisons belong to the capture, and each call raises the numbers by as much
as the traced one did. Numbers that other captured steps count up are treated alike, as when a call leaves its batch out
and counts nothing: this step raises them by 0.
"""

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from outgrow.errors import Uncapturable
from outgrow.frontends.user.left.changes import Change, Changed, Filled
from outgrow.frontends.user.left.refusing import Read
from outgrow.frontends.user.reach.configuration import content
from outgrow.frontends.user.reach.locations import Location
from outgrow.frontends.user.unreadable import Unreadable

_DIRECT = 2
"""The length of a path to an attribute: that of its owner, and its name."""
OTHERWISE = (
    *(Uncapturable, ArithmeticError, AssertionError, AttributeError),
    *(LookupError, RuntimeError, TypeError, ValueError),
)
"""The errors in which a step may end if it meets an object in place of a number."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How a whole number compares, once it was raised by `amount`, and divided if there is a `divisor`."""

    amount: int
    divisor: int | None
    compare: Callable[[Any, Any], bool]
    other: int | float

    def of(self, number: int) -> bool:
        """Compare a number, or what is left of it, with the other one."""
        raised = number + self.amount
        return self.compare(raised if self.divisor is None else raised % self.divisor, self.other)


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number that a step raises by `amount`, and looks at in no other way than how it is `compared`.

    It `is_signed` if it is an attribute that signatures describe.
    """

    location: Location
    amount: int
    is_signed: bool = False
    compared: Mapping[Compared, bool] = field(default_factory=dict[Compared, bool])

    @property
    def is_deep(self) -> bool:
        """Whether it is an attribute not of what has signatures itself, but of a configuration there."""
        return len(self.location.path) > _DIRECT

    def still_holds(self) -> bool:
        """Whether a whole number is there that compares as the first one did."""
        there = self.location.read()
        return type(there) is int and all(item.of(there) is answer for item, answer in self.compared.items())

    def leave(self) -> None:
        """Raise it as the step does."""
        there = self.location.read()
        assert isinstance(there, int), "that is asked before each call"
        self.location.write(there + self.amount)


@dataclass(frozen=True)
class Did:
    """What a step did when it was traced: its program, what it returned, and what it changed outside and settled."""

    program: str
    returned: Sequence[object]
    changed: Sequence[Change]
    settled: Sequence[Change]

    def numbers(self) -> tuple[Location, ...]:
        """Return where the step put a whole number in place of another, which has been put back since."""
        ends = self._ends().items()
        return tuple(place for place, end in ends if type(end) is int and type(place.read()) is int)

    def counts(self, places: Sequence[Location]) -> tuple[Count, ...] | None:
        """Return by how much the step raised the numbers that were withheld at some places.

        None if it did anything else with one of them.
        """
        ends = {place.key: end for place, end in self._ends().items()}
        found = [(place, ends.get(place.key, place.own())) for place in places]
        signed = {item.location.key for item in self.settled}
        raised = [(place, end) for place, end in found if type(end) is _Tally and end.counts(place)]
        counts = tuple([Count(place, end.amount, place.key in signed, end.compared) for place, end in raised])
        return counts if len(counts) == len(places) else None

    def beside(self, places: Sequence[Location]) -> Hashable:
        """Describe all that the step did, but for what it left at some places."""
        keys = {place.key for place in places}
        ends = [(place.key, content(end)) for place, end in self._ends().items() if place.key not in keys]
        left = (*self.changed, *self.settled)
        filled = [(item.location.key, content(item.value)) for item in left if isinstance(item, Filled)]
        return (self.program, *map(content, self.returned), *ends, *filled)

    def _ends(self) -> dict[Location, object]:
        left = (*self.changed, *self.settled)
        return {item.location: item.value for item in left if isinstance(item, Changed)}


def counted(first: Did, traced_anew: Callable[[], Did], others: Iterable[Location] = ()) -> tuple[Count, ...]:
    """Return the whole numbers that a step only counts up, among those that `others` count.

    It is traced anew for that, if there are some that it may count.
    """
    changed = first.numbers()
    keys = {place.key for place in changed}
    places = (*changed, *(place for place in others if place.key not in keys and type(place.read()) is int))
    while places:
        with _withheld(places) as looked_at:
            try:
                again = traced_anew()
                counts = again.counts(places)
            except OTHERWISE:
                counts = None
        if not looked_at:
            return counts if counts and again.beside(places) == first.beside(places) else ()
        places = tuple(place for place in places if place not in looked_at)
    return ()


@contextmanager
def uncounted(counts: Iterable[Count]) -> Iterator[None]:
    """Within it the counts in configurations are 0, so that a signature does not depend on them."""
    deep = [count.location for count in counts if count.is_deep]
    before = [(place, number) for place in deep if type(number := place.own()) is int]
    for place, _ in before:
        place.write(0)
    try:
        yield
    finally:
        for place, number in before:
            place.write(number)


@contextmanager
def _withheld(places: Sequence[Location]) -> Iterator[set[Location]]:
    """Let nobody learn which whole numbers are at some places; yield those where somebody has tried to."""
    looked_at: set[Location] = set()
    before = [(place, place.own()) for place in places]
    for place, number in [(place, place.read()) for place in places]:
        place.write(_Tally(place, number, looked_at))
    try:
        yield looked_at
    finally:
        for place, own in before:
            place.write(own)


class _Tally(Unreadable):
    """Stands for a whole number, and knows how much was added.

    How it compares it says, and notes; whoever looks at it otherwise is refused, and that is noted.
    """

    def __init__(self, place: Location, number: Any, looked_at: set[Location]) -> None:
        self.amount, self.divisor, self.compared = 0, None, dict[Compared, bool]()
        self._place, self._number, self._looked_at = place, number, looked_at

    def error(self) -> Read:
        """Note that it was looked at, and return the refusal."""
        self._looked_at.add(self._place)
        return Read(f"the step looks at {self._place.name}, which it counts up")

    def counts(self, place: Location) -> bool:
        """Whether this is what has become of the number that was at a place, and not of another, nor what is left."""
        return self._place.key == place.key and self.divisor is None

    def _with(self, amount: int, divisor: int | None) -> "_Tally":
        other = _Tally(self._place, self._number, self._looked_at)
        other.amount, other.divisor, other.compared = amount, divisor, self.compared
        return other

    def _raised(self, number: Any) -> "_Tally":
        if type(number) is not int or self.divisor is not None:
            raise self.error()
        return self._with(self.amount + number, None)

    def _lowered(self, number: Any) -> "_Tally":
        return self._raised(-number if type(number) is int else number)

    def _divided(self, number: Any) -> "_Tally":
        if type(number) is not int or not number or self.divisor is not None:
            raise self.error()
        return self._with(self.amount, number)

    def _compared(self, compare: Callable[[Any, Any], bool], other: Any) -> bool:
        if type(other) not in (int, float):
            raise self.error()
        asked = Compared(self.amount, self.divisor, compare, other)
        return self.compared.setdefault(asked, asked.of(self._number))

    __hash__ = Unreadable.refuse

    def __eq__(self, other: object) -> bool:
        return self._compared(operator.eq, other)

    def __ne__(self, other: object) -> bool:
        return self._compared(operator.ne, other)

    def __lt__(self, other: object) -> bool:
        return self._compared(operator.lt, other)

    def __le__(self, other: object) -> bool:
        return self._compared(operator.le, other)

    def __gt__(self, other: object) -> bool:
        return self._compared(operator.gt, other)

    def __ge__(self, other: object) -> bool:
        return self._compared(operator.ge, other)

    def __bool__(self) -> bool:
        return self._compared(operator.ne, 0)

    __class__ = property(lambda _: int)  # for those who ask whether it is one
    __add__ = __radd__ = __iadd__ = _raised
    __sub__ = __isub__ = _lowered
    __mod__ = _divided
    __repr__ = __reduce_ex__ = Unreadable.refuse
