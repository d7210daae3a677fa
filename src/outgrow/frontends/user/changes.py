"""What does a step change that is to be changed after each call, too? Its Python runs once, when it is captured.

Something else is put at a location, or a container that is there gets other contents.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from outgrow.frontends.user.configuration import is_configuration, is_same, is_sampled
from outgrow.frontends.user.filling import Array, Container, change, has_still
from outgrow.frontends.user.locations import Location


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """The location of a container that hangs in attributes of what is `held`: a name, then keys and places.

    The user may put another container there, so it is found anew each time.
    """

    held: object
    keys: tuple[object, ...]

    @property
    def key(self) -> tuple[int, tuple[object, ...]]:
        """What is the same for two of the same way."""
        return id(self.held), self.keys

    def read(self) -> object:
        """Return what is there now, of a configuration its attributes; None if nothing is."""
        found: object = vars(self.held)
        for key in self.keys:
            found = inner(_entry(found, key))
        return found


@dataclass(frozen=True, slots=True)
class Changed:
    """A location where a step has put something else, and what that is; `MISSING` where it deletes it."""

    location: Location
    value: object

    def leave(self) -> None:
        """Put it there as the step does."""
        self.location.write(self.value)


@dataclass(frozen=True, slots=True)
class Filled:
    """A container, or an array, to which a step has given other contents: a copy from before, and one of these."""

    location: Location | Way
    before: Container | Array
    value: Container | Array

    def there(self) -> Container | Array | None:
        """Return what is there now, if it is a container of this kind."""
        found: Any = self.location.read()
        return found if type(found) is type(self.value) else None

    def leave(self) -> None:
        """Fill the container as the step does."""
        there = self.there()
        if there is not None:
            change(there, self.before, self.value)

    def still_holds(self) -> bool:
        """Whether the step would change the same: of large ones few entries are described."""
        there = self.there() if is_sampled(self.before) else None
        return there is None or has_still(there, self.before, self.value, is_same)


Change: TypeAlias = Changed | Filled


def inner(value: object) -> object:
    """Return the attributes of a configuration, and anything else itself."""
    return vars(value) if is_configuration(value) else value


def _entry(container: object, key: Any) -> object:
    """Return an entry of a container by its key or place; None if there is none. What is in a set has none."""
    match container:
        case dict():
            return container.get(key)
        case list() | deque():
            return container[key] if key < len(container) else None
        case _:
            return None
