"""Which results does a step keep in an attribute of a module or an optimizer, and can each call leave its own there?

    self.loss = loss.detach()
    self.logs["loss"] = loss.item()
    self.losses.append(loss.item())

Small ones can, if they are all that the step does there: what is large would take room in the budget between the steps.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch.utils._pytree as pytree
from torch import Tensor

from outgrow.frontends.user.filling import Container, is_container
from outgrow.frontends.user.left.contents import has_results
from outgrow.frontends.user.left.slots import ListSlot, PlaceSlot, appended
from outgrow.frontends.user.reach.configuration import NUMBERS
from outgrow.frontends.user.reach.locations import Location
from outgrow.units import MIB

_MOST_BYTES = 1 * MIB
"""Tensors in more memory than this are not left."""
Slot: TypeAlias = ListSlot | PlaceSlot


@dataclass(frozen=True, slots=True)
class Kept:
    """Values of a step, tensors or numbers, that a module or an optimizer keeps in an attribute after it.

    `replaced` is what was in the attribute before. `kind` is the type of what is there now, or, if that is a container,
    of what is in it; `form` is the container without these values. `results` are what each call can leave there, by
    where; None if it cannot.
    """

    owner: object
    name: str
    values: tuple[object, ...]
    replaced: object
    kind: type
    form: object = None
    results: Mapping[Slot, object] | None = None

    def is_state(self) -> bool:
        """Whether the values replace a number, from which the step may have made them: then they are state."""
        return isinstance(self.replaced, int | float)


class Results:
    """What each call can leave in attributes.

    `copies` are of containers that were there before, by their identities. Of these, some are `only_filled` by the
    step; how many entries another one has may decide what it does.
    """

    def __init__(self, copies: Mapping[int, Any], only_filled: Collection[int]) -> None:
        self._copies, self._only_filled = copies, only_filled
        self._met = set[int]()
        self._left = set[int]()

    def at(self, location: Location, value: object, fresh: Collection[object]) -> dict[Slot, object] | None:
        """Return what each call can leave at a location where a step has put a value, or filled it, with `fresh` ones.

        None if it does something else there as well. What is in a container that several have is left by the first.
        """
        try:
            found = dict(self._changes(location, value))
        except _DoneOtherwise:
            return None
        own = set(map(id, fresh))
        leaves = pytree.tree_leaves([*found.values()], is_leaf=lambda item: id(item) in self._copies)
        if not all(_is_small(leaf) if id(leaf) in own else type(leaf) in NUMBERS for leaf in leaves):
            return None
        self._left.update(map(id, leaves))
        return found if own <= self._left else None

    def _changes(self, location: Location, there: Any) -> Iterator[tuple[Slot, object]]:
        """Yield what is new at a location, and below, where there are results in it."""
        is_known, is_met = id(there) in self._copies, id(there) in self._met
        if is_container(there):
            self._met.add(id(there))
        if is_met and not is_known:
            raise _DoneOtherwise
        if not is_known:
            yield _place(location, location.owner()), there
        elif not is_met:
            new = list(_new(location, there, self._copies[id(there)]))
            if has_results([value for _, value in new]):
                if id(there) not in self._only_filled:
                    raise _DoneOtherwise
                yield from new
            for key, item in there.items() if isinstance(there, dict) else enumerate(there):
                if id(item) in self._copies:
                    yield from self._changes(location.below((key,)), item)


class _DoneOtherwise(Exception):
    """What a step does to a container is more than to append to it, or to write entries."""


def _new(location: Location, there: Container, copy: Any) -> Iterator[tuple[Slot, object]]:
    """Yield what is new in a container."""
    more = appended([*there], [*copy], there.maxlen if isinstance(there, deque) else None)
    if isinstance(there, dict) and more is not None:
        for key, item in there.items():
            if key not in copy or copy[key] is not item:
                yield _place(location.below((key,)), there), item
    elif isinstance(there, list) and more is None and len(there) == len(copy):
        for at, (item, before) in enumerate(zip(there, copy, strict=True)):
            if item is not before:
                if not has_results(item):
                    raise _DoneOtherwise  # it may have been at another place before
                yield _place(location.below((at,)), there), item
    elif more is None or (isinstance(there, set) and more):
        raise _DoneOtherwise
    elif more:
        yield ListSlot(location.key, location, type(there), is_used=False), more


def _place(location: Location, owner: object) -> PlaceSlot:
    return PlaceSlot(location.key, location, type(owner), is_used=False)


def _is_small(result: object) -> bool:
    return not isinstance(result, Tensor) or result.untyped_storage().nbytes() <= _MOST_BYTES
