"""What does a step change that is to be changed after each call, too? Its Python runs once, when it is captured.

Something else is put at a location, or a container that is there gets other contents.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from outgrow.frontends.user.filling import Array, Container, change, has_still
from outgrow.frontends.user.reach.configuration import is_configuration, is_same, is_sampled
from outgrow.frontends.user.reach.locations import Location


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
    """A container, or an array, to which a step has given other contents: a copy from before, and one of these.

    The user may put another container there, so it is found anew each time.
    """

    location: Location
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
