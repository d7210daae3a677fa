"""What does a step take out of what is outside, so that it is gone? Nothing: it would be the same in every call.

An iterator that the step names is refused before the step is traced, since nobody can put back what it has given. A
container of which the step takes something, `batches.pop(0)`, has it again, and the step is refused as well.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import IOBase

from outgrow.errors import Uncapturable
from outgrow.frontends.user.attributes import is_container, refill
from outgrow.frontends.user.places import Place

_REMEDY = (
    "which the captured step would not do again: every call would get what the first one got. Take it outside of the "
    "step, and pass it as an argument"
)


def is_iterator(value: object) -> bool:
    """Whether a value gives away what comes next; files, to which a step may write, do not count."""
    return hasattr(type(value), "__next__") and not isinstance(value, IOBase)


@contextmanager
def nothing_taken(places: Iterable[Place], signed: frozenset[int], arguments: Iterable[object] = ()) -> Iterator[None]:
    """Raise `Uncapturable` if a place, or an argument, is an iterator, or the block takes out of a container.

    Containers of modules and optimizers whose identities are `signed` are left to `frontends.user.attributes`.
    """
    there = [(place, place.read()) for place in places]
    named = [(f"`{place.name}`", value) for place, value in there]
    for name, value in (*named, *(("an argument", value) for value in arguments)):
        if is_iterator(value):
            raise Uncapturable(f"the step takes from an iterator, {name}, {_REMEDY}")
    containers = {id(value): (place, value) for place, value in there if is_container(value)}
    copies = [(place, x, x.copy()) for place, x in containers.values() if not place.is_signed(signed)]
    taken: list[str] = []
    try:
        yield
    finally:
        for place, container, copy in copies:
            if len(container) < len(copy):
                taken.append(place.name)
                refill(container, copy)
    if taken:
        raise Uncapturable(f"the step takes something out of `{taken[0]}`, {_REMEDY}")
