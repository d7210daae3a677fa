"""Where does each call of a captured step leave results? At the end of a list, or at a place of their own."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from outgrow.frontends.user.left.made import put_together
from outgrow.frontends.user.reach.locations import Location


@dataclass(frozen=True, slots=True)
class ListSlot:
    """A list of a `kind`, or a deque, to which a step appends; whether it `is_used` in other ways, too."""

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
    """A location at which a step puts a result, or something with results in it.

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


def appended(now: Sequence[object], before: Sequence[object], most: int | None = None) -> list[object] | None:
    """Return what was appended to a list that was as `before`; None if anything else was done to it.

    What a deque of at `most` so many entries has lost at its beginning went for what was appended.
    """
    count, gone = len(before), 0
    if len(now) == most:
        starts = range(max(0, count - len(now)), count)
        gone = next((at for at in starts if all(map(is_, now, before[at:]))), count)
    stays = len(now) >= count - gone and all(map(is_, now, before[gone:]))
    return [*now[count - gone :]] if stays else None
