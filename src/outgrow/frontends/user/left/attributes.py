"""What do modules and optimizers keep in their attributes? What a step leaves there counts: its Python runs once.

    settled values        numbers, words, containers and configurations are part of the signature, as is which tensors
                          and modules were there before, so every call with one signature leaves the same ones: they
                          are set after each call as the captured step left them
    values of the step    have no content while it is captured; a small one that is in an attribute itself, in no
                          container, is a result of the graph, and each call leaves its own

All attributes are put back after the capture. Objects of other kinds are not looked into: a change of one happens once,
at the capture, and the user is told; where a step puts another one in its place, the next step must not read it. A mask
that a module would make only once is made in every step. What depends on the batch or on weights, such as a hidden
state, or on what the attribute held before, must not be read by the next step: to find out, the step is traced again
with an object in its place that refuses to be read (`refusing`). Where the next step is another one because it is
there, signatures tell. A settled value that lets the next step read a mask that is not left, such as the length of a
table that is kept beside it, is not left either.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.utils._pytree as pytree
from torch import SymBool, SymFloat, SymInt, Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.types import py_sym_types

from outgrow.frontends.user.filling import (
    Array,
    Container,
    differ,
    entries,
    is_container,
    is_filled,
    like,
    refill,
)
from outgrow.frontends.user.left.changes import Change, Changed, Filled, inner
from outgrow.frontends.user.left.refusing import Left, Refusing, all_refusing
from outgrow.frontends.user.reach.configuration import is_opaque, is_settled
from outgrow.frontends.user.reach.locations import MISSING, Location
from outgrow.remarks import remark
from outgrow.units import KIB

_OF_MODULES = ("_parameters", "_buffers")
_OF_OPTIMIZERS = ("state", "param_groups")
"""Attributes that are a module's tables of tensors, or an optimizer's."""
_MOST_BYTES = 64 * KIB
"""Tensors in more memory are not left: it would be taken between the steps."""
_NUMBERS: dict[type, type] = {SymInt: int, SymFloat: float, SymBool: bool}
_ONCE = (
    "The step changes {0}.{2}. outgrow does not look into a {1}, so this happens once, when the step is captured. Keep "
    "what changes from step to step in an attribute of the module or the optimizer itself, or change it after the step."
)


@dataclass(frozen=True, slots=True)
class Kept:
    """Values of a step, tensors or numbers, that a module or an optimizer keeps in an attribute after it.

    `replaced` is what was in the attribute before. `kind` is the type of what is there now, or, if that is a container,
    of what is in it; `form` is the container without these values (`_form`). Each call can leave its own there if the
    attribute is a small value itself: it `can_stay`. An owner that is a configuration has its attributes `within` one
    of a module or an optimizer.
    """

    owner: object
    name: str
    values: tuple[object, ...]
    replaced: object
    kind: type
    form: object = None
    can_stay: bool = False
    within: Location | None = None

    def is_state(self) -> bool:
        """Whether the values replace a number, from which the step may have made them: then they are state."""
        return isinstance(self.replaced, int | float)


class _Contained(NamedTuple):
    """A container at a location, or the attributes of a configuration there, its `owner`, and a copy."""

    location: Location
    there: Container | Array
    copy: Container | Array
    owner: object

    @property
    def is_configuration(self) -> bool:
        """Whether it is what a configuration has."""
        return self.owner is not self.there


@dataclass(frozen=True)
class Attributes:
    """The attributes of objects before a step, copies of the containers among them, and tensors without content.

    `opaque` are those that are not looked into, by what to call them, with their own attributes.
    """

    owners: tuple[object, ...]
    before: tuple[dict[str, object], ...]
    containers: tuple[_Contained, ...]
    known: frozenset[int]
    opaque: tuple[tuple[str, object, dict[str, object]], ...]

    @staticmethod
    def of(owners: Iterable[object]) -> "Attributes":
        """Note what is there."""
        each = tuple({id(owner): owner for owner in owners}.values())
        before = tuple(dict(vars(owner)) for owner in each)
        found: dict[int, _Contained] = {}
        for owner, copy in zip(each, before, strict=True):
            for name, value in copy.items():
                if name not in _held_elsewhere(owner):
                    _find_containers(attribute(owner, name), value, found)
        known = frozenset(id(leaf) for copy in before for leaf in _leaves(copy) if isinstance(leaf, FakeTensor))
        named = ((f"{type(owner).__name__}.{name}", value) for owner in each for name, value in vars(owner).items())
        inside = ((name, value) for name, value in named if is_opaque(value) and hasattr(value, "__dict__"))
        opaque = tuple((name, value, dict(vars(value))) for name, value in inside)
        return Attributes(each, before, tuple(found.values()), known, opaque)

    def put_back(self) -> None:
        """Put back whatever has changed."""
        found: list[tuple[Any, Any]] = [(item.there, item.copy) for item in self.containers]
        found += [(vars(owner), copy) for owner, copy in zip(self.owners, self.before, strict=True)]
        for there, copy in found:
            if differ(there, copy):
                refill(there, copy)

    def settled(self) -> tuple[Change, ...]:
        """Return what has changed and has content."""
        found: list[Change] = []
        for item in reversed(self.containers):  # those inside first, where they were
            known = {id(entry) for entry in entries(item.copy)}
            is_full = all(id(entry) in known or self._is_full(entry) for entry in entries(item.there))
            if not item.is_configuration and is_full and differ(item.there, item.copy):
                found.append(Filled(item.location, item.copy, item.there.copy()))
        for owner, copy, place in self._each():
            elsewhere = _held_elsewhere(owner)
            there = {name: value for name, value in vars(owner).items() if name not in elsewhere}
            new = [(name, value) for name, value in there.items() if name not in copy or copy[name] is not value]
            found += [Changed(place.below((name,)), value) for name, value in new if self._is_full(value)]
            gone = [name for name in copy if name not in there and name not in elsewhere]
            found += [Changed(place.below((name,)), MISSING) for name in gone]
        return tuple(found)

    def exchanged(self) -> tuple[Left, ...]:
        """Return where another object is that is not looked into: a signature tells no difference."""
        each = zip(self.owners, self.before, strict=True)
        pairs = ((owner, name, copy.get(name), item) for owner, copy in each for name, item in vars(owner).items())
        return tuple(
            Left(owner, name, 0, depend=True, kind=type(new))
            for owner, name, old, new in pairs
            if old is not new and type(old) is type(new) and is_opaque(new)
        )

    def warn_of_opaque(self) -> None:
        """Say where the step has changed a number in an object that is not looked into."""
        for name, value, copy in self.opaque:
            changed = [key for key, item in vars(value).items() if is_settled(item) and copy.get(key) is not item]
            if changed:
                remark(_ONCE.format(name, type(value).__name__, changed[0]))

    def kept(self) -> tuple[Kept, ...]:
        """Return the values of the step that attributes hold now."""
        found: list[Kept] = []
        copies = {id(item.there): item.copy for item in self.containers}
        for owner, before, place in self._each():
            within = None if place.held is owner else place
            for name in [name for name in vars(owner) if name not in _held_elsewhere(owner)]:
                there, old = vars(owner)[name], before.get(name)
                fresh = tuple(x for x in _leaves(there) if is_empty(x) and id(x) not in self.known)
                replaced = copies.get(id(old), old)
                can_stay = len(fresh) == 1 and fresh[0] is there and _is_small(there) and within is None
                form = _form(there, fresh, replaced)
                kept = Kept(owner, name, fresh, replaced, _kind_of(there, fresh), form, can_stay, within)
                found += [kept] if fresh else []
        return tuple(found)

    def _each(self) -> Iterator[tuple[object, Mapping[Any, object], Location]]:
        """Yield configurations, those inside first, and then all others, with what their attributes were, and where."""
        for item in reversed(self.containers):
            if item.is_configuration and isinstance(item.copy, dict):
                yield item.owner, item.copy, item.location
        for owner, before in zip(self.owners, self.before, strict=True):
            yield owner, before, Location.holding(type(owner).__name__, owner)

    def _is_full(self, value: object) -> bool:
        """Whether there is no value of the step in another one."""
        return not any(is_empty(leaf) and id(leaf) not in self.known for leaf in _leaves(value))


@contextmanager
def attributes_kept(owners: Iterable[object]) -> Iterator[Attributes]:
    """Put attributes back at the end. What of them has content then is left after each call."""
    attributes = Attributes.of(owners)
    try:
        yield attributes
    finally:
        attributes.put_back()


def left_by(
    kept: Sequence[Kept],
    nodes: Iterable[object],
    dependent: Callable[[Sequence[Tensor]], Collection[object]],
    fakes: Mapping[int, Tensor],
) -> tuple[Left, ...]:
    """Return what a step leaves in attributes; `nodes` of its trace are the values that are kept, in order.

    `dependent` gives the nodes that depend on what the step is given, if some tensors are others in the next one, and
    `fakes` are the tensors of the trace by the identities of those that it stands for.
    """
    if not kept:
        return ()
    replaced = [fakes[id(leaf)] for item in kept for leaf in _leaves(item.replaced) if id(leaf) in fakes]
    rest, depending = iter(nodes), dependent(replaced)
    found: list[Left] = []
    for item in kept:
        own = [next(rest) for _ in item.values]
        pairs = zip(own, item.values, strict=True)
        depend = any(node in depending or isinstance(value, py_sym_types) for node, value in pairs) or item.is_state()
        node = own[0].name if depend and item.can_stay and isinstance(own[0], fx.Node) else ""
        own_left = Left(item.owner, item.name, len(own), depend, item.kind, item.form, node=node, within=item.within)
        found.append(own_left)
    return tuple(found)


@contextmanager
def next_step(settled: Sequence[Change], left: Sequence[Left]) -> Iterator[Callable[[Sequence[Change]], None]]:
    """Let attributes be as the next step would find them, with objects that refuse to be read for what is left there.

    All is as before at the end. What is yielded is to be given what the next step settles; it raises `Read` if one of
    these objects is elsewhere then, where the step after that may read it.
    """
    with attributes_kept([*(item.location.held for item in settled), *(item.owner for item in left)]):
        for item in settled:
            item.leave()
        shared: dict[int, object] = {}  # what several owners have stays one container
        for item in left:
            table, refusing = vars(item.owner), item.refusing()
            there = table.get(item.name)
            if is_container(there) and id(there) not in shared:
                shared[id(there)] = all_refusing(there, refusing, item)
            table[item.name] = shared.get(id(there), refusing)
        own = {id(vars(item.owner)[item.name]) for item in left}

        def check_unmoved(found: Sequence[Change]) -> None:
            for item in found:
                stays = isinstance(item, Filled) and id(item.there()) in own
                for leaf in () if stays else _leaves(item.value):
                    if isinstance(leaf, Refusing):
                        leaf.refuse()

        yield check_unmoved


def _form(there: object, fresh: Collection[object], replaced: object) -> object:
    """Return a container without what is in it; of a list of which entries were written over, whether each was."""
    if isinstance(there, list | deque) and isinstance(replaced, list | deque) and len(there) == len(replaced):
        new = {id(item) for item in fresh}
        written = [any(id(leaf) in new for leaf in _leaves(item)) for item in there]
        if all(is_new or item is old for is_new, item, old in zip(written, there, replaced, strict=True)):
            return tuple(written)
    return like(there, None)


def _find_containers(location: Location, value: object, found: dict[int, _Contained]) -> None:
    """Find the containers, arrays and attributes of configurations in a value, each once, where it is, and a copy."""
    there = inner(value)
    if not is_filled(there) or id(there) in found:
        return
    location = location if there is value else location.below(("__dict__",))
    found[id(there)] = _Contained(location, there, there.copy(), value)
    items = there.items() if isinstance(there, dict) else enumerate(entries(there))
    for key, item in items:
        _find_containers(location.below((key,)), item, found)


def attribute(owner: object, name: str) -> Location:
    """Return where an attribute is."""
    return Location.holding(type(owner).__name__, owner).below((name,))


def _held_elsewhere(owner: object) -> tuple[str, ...]:
    return _OF_OPTIMIZERS if isinstance(owner, Optimizer) else _OF_MODULES


def _is_small(value: object) -> bool:
    return not isinstance(value, Tensor) or value.untyped_storage().nbytes() <= _MOST_BYTES


def _leaves(value: object) -> list[object]:
    """Return what is in containers, those among them that pytrees do not look into."""
    inside = [*entries(value)] if is_container(value) else value
    found = pytree.tree_leaves(inside)
    return [leaf for item in found for leaf in (_leaves(item) if is_container(item) else [item])]


def is_empty(value: object) -> bool:
    """Whether a value has no content while a step is captured."""
    return isinstance(value, (FakeTensor, *py_sym_types))


def has_results(value: object) -> bool:
    """Whether there is anything in a value that has no content while a step is captured."""
    return any(map(is_empty, pytree.tree_leaves(value)))


def _kind_of(there: object, fresh: Sequence[object]) -> type:
    """Return of which type eager mode has what is in an attribute, or what is fresh in a container there."""
    value = fresh[0] if fresh and is_container(there) else there
    return Tensor if isinstance(value, FakeTensor) else _NUMBERS.get(type(value), type(value))
