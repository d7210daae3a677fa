"""What is at the locations that a step reaches, and in what is there? As it was, in case that the step is refused.

Then the step's Python has run, and what it has left without content is in containers, and in attributes of objects in
them, that no name leads to. Modules, optimizers and what libraries have are left to others.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import Optimizer

from outgrow.frontends.user.filling import Container, differ, entries, is_container, refill
from outgrow.frontends.user.left.attributes import is_empty
from outgrow.frontends.user.reach.containers import held
from outgrow.frontends.user.reach.locations import Location, is_of_the_user

_MOST = 1 << 12
"""So many containers and objects are looked into."""
_MOST_ENTRIES = 1 << 10
"""In a larger one no others are looked for."""


@dataclass(frozen=True)
class Belongings:
    """What is at some locations, and containers and attributes of objects below these, with copies."""

    places: tuple[tuple[Location, object], ...] = ()
    containers: tuple[tuple[Container, Container], ...] = ()

    @staticmethod
    def of(locations: Iterable[Location]) -> "Belongings":
        """Note what is there."""
        places = tuple([(location, location.own()) for location in locations])
        found: dict[int, tuple[Container, Container]] = {}
        met: dict[int, object] = {}
        waiting = [value for _, value in places]
        while waiting and len(found) < _MOST:
            value = waiting.pop()
            for there, copy in () if id(value) in met else _inside(value):
                found[id(there)] = (there, copy)
                waiting += entries(copy) if len(copy) <= _MOST_ENTRIES else ()
            met[id(value)] = value
        return Belongings(places, tuple(found.values()))

    def have_results(self) -> bool:
        """Whether anything is there by now that has no content, or holds what has none."""
        found = [now for location, value in self.places if (now := location.own()) is not value]
        for there, copy in self.containers:
            if differ(there, copy):
                known = set(map(id, entries(copy)))
                found += [item for item in entries(there) if id(item) not in known]
        return any(is_empty(leaf) or is_empty(held(leaf)) for leaf in pytree.tree_leaves(found))

    def put_back(self) -> None:
        """Let all of it be as it was."""
        for location, value in self.places:
            if location.own() is not value:
                location.write(value)
        for there, copy in self.containers:
            if differ(there, copy):
                _refill(there, copy)


def _refill(there: Any, copy: Any) -> None:
    """Let a container have what a copy has, also one of a type that may not allow it."""
    if is_container(there):
        refill(there, copy)
    elif isinstance(there, list):
        list[object].__setitem__(there, slice(None), copy)
    else:
        dict[object, object].clear(there)
        dict[object, object].update(there, copy)


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a container itself, also one of a type derived from lists or dictionaries, and an object's attributes.

    With each a copy. Objects of others than the user have none.
    """
    if is_container(value):
        yield value, value.copy()
    elif isinstance(value, list | dict) and not isinstance(value, OrderedDict) and is_of_the_user(type(value)):
        yield value, list[object].copy(value) if isinstance(value, list) else dict[object, object].copy(value)
    is_apart = isinstance(value, (type, Tensor, nn.Module, Optimizer)) or not is_of_the_user(type(value))
    if not is_apart and hasattr(value, "__dict__"):
        yield vars(value), vars(value).copy()
