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
with an object in its place that refuses to be read. Such an object is there after each call as well if what it stands
for is not left, and whenever a step is captured or looked for. It is of the same type to whoever asks; where the next
step is another one because it is there, signatures tell. A settled value that lets the next step read a mask that is
not left, such as the length of a table that is kept beside it, is not left either.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch.utils._pytree as pytree
from torch import SymBool, SymFloat, SymInt, Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.types import py_sym_types
from torch.utils.weak import WeakIdKeyDictionary

from outgrow.errors import Uncapturable
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
from outgrow.frontends.user.reach.configuration import is_opaque, is_settled
from outgrow.frontends.user.reach.locations import MISSING, Location
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.frontends.user.unreadable import Unreadable
from outgrow.remarks import remark
from outgrow.units import KIB

_OF_MODULES = ("_parameters", "_buffers")
_OF_OPTIMIZERS = ("state", "param_groups")
"""Attributes that are a module's tables of tensors, or an optimizer's."""
_Contained: TypeAlias = tuple[Location, Container | Array, Container | Array]
"""Where a container is, itself, and a copy."""
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
    attribute is a small value itself: it `can_stay`.
    """

    owner: object
    name: str
    values: tuple[object, ...]
    replaced: object
    kind: type
    form: object = None
    can_stay: bool = False

    def is_state(self) -> bool:
        """Whether the values replace a number, from which the step may have made them: then they are state."""
        return isinstance(self.replaced, int | float)


@dataclass(frozen=True, slots=True)
class Left:
    """An attribute in which a step leaves `count` values; the next step must not read them if they `depend` on it.

    They `depend` if they are made of what the step was given, as numbers of tensors are, or of what was there before.
    A `count` of 0 says that the step leaves another object there, which is not looked into. `kind` and `form` are as in
    `Kept`. `is_alike` says that the next step does the same whether or not something is left there. `node` is the name
    of what in the trace each call leaves there; empty if it leaves nothing.
    """

    owner: object
    name: str
    count: int
    depend: bool
    kind: type
    form: object = field(default=None, compare=False)
    is_alike: bool = False
    node: str = ""

    @property
    def of(self) -> str:
        """The name of the attribute in messages, with the type of its owner."""
        return f"{type(self.owner).__name__}.{self.name}"

    @property
    def is_inside(self) -> bool:
        """Whether the attribute is a container, which stays there: the values are in it."""
        return is_container(vars(self.owner).get(self.name))

    def refusing(self) -> "_Refusing":
        """Return an object that takes the place of a value and refuses to be read."""
        return _Refusing(self.of, self.kind, id(self.owner))

    @property
    def key(self) -> tuple[int, str]:
        """What is the same for all steps that leave something in this attribute."""
        return (id(self.owner), self.name)

    def merged(self, known: Mapping[tuple[int, str], "Left"]) -> "Left":
        """Return this attribute for all steps that leave something in it: alike only if it is so for each of them."""
        other = known.get(self.key)
        return self if other is None or other.is_alike else replace(self, is_alike=False)

    def is_told(self, there: object) -> bool:
        """Whether a call that finds `there`, nothing or a settled value, in the attribute has its own signature."""
        return not self.is_alike and (there is MISSING or is_settled(there))

    def show(self) -> None:
        """Note that what is there now was left there by a call."""
        _shown.setdefault(self.owner, {})[self.name] = (self.refusing(), vars(self.owner)[self.name])

    def withhold(self) -> None:
        """Put an object there that refuses to be read; into a container, such objects for the values in it."""
        table = vars(self.owner)
        there, refusing = table.get(self.name), self.refusing()
        if is_container(there):
            refill(there, _with_refusing(there, refusing, self))
        else:
            table[self.name] = refusing


_shown: MutableMapping[object, dict[str, tuple[object, object]]] = WeakIdKeyDictionary()
"""Results that calls of any step have left, by owner and attribute, each with what refuses to be read in its place."""


@contextmanager
def nothing_shown(owners: Iterable[object]) -> Iterator[None]:
    """Within this context objects that refuse to be read are in attributes in place of results that calls have left."""
    shown = [(vars(owner), _shown.get(owner, {})) for owner in (owners if _shown else ())]
    places = [(table, name, *found) for table, each in shown for name, found in each.items()]
    with _exchanged([(table, name, item) for table, name, item, value in places if table.get(name) is value]):
        yield


@contextmanager
def withheld(items: Iterable[Left]) -> Iterator[None]:
    """Within this context attributes look as if the steps that leave something there had just run.

    So a signature does not depend on whether they have, except where that makes another step (`Left.is_told`).
    """
    places = [(vars(item.owner), item) for item in items]
    alike = [(table, item) for table, item in places if not item.is_told(table.get(item.name, MISSING))]
    with _exchanged([(table, item.name, item.refusing()) for table, item in alike]):
        yield


@contextmanager
def _exchanged(places: Sequence[tuple[dict[str, object], str, object]]) -> Iterator[None]:
    """Within this context other values are in attributes: their tables, their names, and the values."""
    before = [(table, name, table.get(name, MISSING)) for table, name, _ in places]
    for table, name, value in places:
        table[name] = value
    try:
        yield
    finally:
        for table, name, value in before:
            if value is MISSING:
                del table[name]
            else:
                table[name] = value


class Read(Uncapturable):
    """Raised where a step reads what an earlier call left in an attribute of the object with the identity `owner`."""

    def __init__(self, message: str, owner: int = 0) -> None:
        super().__init__(message)
        self.owner = owner


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
        found: list[tuple[Any, Any]] = [(container, copy) for _, container, copy in self.containers]
        found += [(vars(owner), copy) for owner, copy in zip(self.owners, self.before, strict=True)]
        for there, copy in found:
            if differ(there, copy):
                refill(there, copy)

    def settled(self) -> tuple[Change, ...]:
        """Return what has changed and has content."""
        found: list[Change] = []
        for location, container, copy in reversed(self.containers):  # those inside first, where they were
            known = {id(item) for item in entries(copy)}
            if differ(container, copy) and all(id(item) in known or self._is_full(item) for item in entries(container)):
                found.append(Filled(location, copy, container.copy()))
        for owner, copy in zip(self.owners, self.before, strict=True):
            elsewhere = _held_elsewhere(owner)
            there = {name: value for name, value in vars(owner).items() if name not in elsewhere}
            new = [(name, value) for name, value in there.items() if name not in copy or copy[name] is not value]
            found += [Changed(attribute(owner, name), value) for name, value in new if self._is_full(value)]
            gone = [name for name in copy if name not in there and name not in elsewhere]
            found += [Changed(attribute(owner, name), MISSING) for name in gone]
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
        copies = {id(container): copy for _, container, copy in self.containers}
        for owner, before in zip(self.owners, self.before, strict=True):
            for name in [name for name in vars(owner) if name not in _held_elsewhere(owner)]:
                there, old = vars(owner)[name], before.get(name)
                fresh = tuple(x for x in _leaves(there) if is_empty(x) and id(x) not in self.known)
                replaced = copies.get(id(old), old)
                can_stay = len(fresh) == 1 and fresh[0] is there and _is_small(there)
                form = _form(there, fresh, replaced)
                kept = Kept(owner, name, fresh, replaced, _kind_of(there, fresh), form, can_stay)
                found += [kept] if fresh else []
        return tuple(found)

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
        found.append(Left(item.owner, item.name, len(own), depend, item.kind, item.form, node=node))
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
                shared[id(there)] = _all_refusing(there, refusing, item)
            table[item.name] = shared.get(id(there), refusing)
        own = {id(vars(item.owner)[item.name]) for item in left}

        def check_unmoved(found: Sequence[Change]) -> None:
            for item in found:
                stays = isinstance(item, Filled) and id(item.there()) in own
                for leaf in () if stays else _leaves(item.value):
                    if isinstance(leaf, _Refusing):
                        leaf.refuse()

        yield check_unmoved


class _Refusing(Unreadable):
    """Stands for a value of an earlier step in an attribute, which has a name; its type is told."""

    def __init__(self, name: str, kind: type, owner: int) -> None:
        self._name, self._kind, self._owner = name, kind, owner

    __class__ = property(lambda self: self._kind)  # for those who ask what it is

    def __reduce_ex__(self, _protocol: object) -> tuple[object, ...]:
        """Copy it, or pickle it, as what it is."""
        return (_Refusing, (self._name, self._kind, self._owner))

    def error(self) -> Read:
        """Return the refusal."""
        return Read(
            f"what an earlier call left in {self._name} is read. A captured step leaves only small results there, and "
            "none for the next one; return it from the step, and pass it as an argument where the next one needs it, "
            "or keep it in a buffer that the step writes with copy_. What a forward pass makes, as one after "
            "torch.nn.utils.prune does, is there again once the model has run by itself, under "
            f"torch.no_grad(){DROP_IN}",
            self._owner,
        )

    def __repr__(self) -> str:
        return f"<what a captured step left in {self._name}>"


def _with_refusing(there: Container, refusing: _Refusing, left: Left) -> Container:
    """Return a container like one in which a step has left values, of whose entries nobody knows which."""
    if isinstance(there, set):
        return {refusing}
    found = there.copy()
    if isinstance(found, dict):
        for form in (there, left.form):
            found.update(like(form, refusing) if isinstance(form, dict) else {})
    else:
        settled = [item for item in there if not isinstance(item, _Refusing)]
        new = [*settled, *[refusing] * left.count]
        if isinstance(left.form, tuple) and len(left.form) == len(there):
            new = [refusing if is_left else item for item, is_left in zip(there, left.form, strict=True)]
        refill(found, new)
    return found


def _form(there: object, fresh: Collection[object], replaced: object) -> object:
    """Return a container without what is in it; of a list of which entries were written over, whether each was."""
    if isinstance(there, list | deque) and isinstance(replaced, list | deque) and len(there) == len(replaced):
        new = {id(item) for item in fresh}
        written = [any(id(leaf) in new for leaf in _leaves(item)) for item in there]
        if all(is_new or item is old for is_new, item, old in zip(written, there, replaced, strict=True)):
            return tuple(written)
    return like(there, None)


def _all_refusing(there: Container, refusing: _Refusing, left: Left) -> Container:
    """Return a container of which nobody may read anything that may be another one than that which is there."""
    found = _with_refusing(there, refusing, left)
    if not isinstance(found, set | dict) and not isinstance(left.form, tuple):
        refill(found, [refusing] * len(found))
    return found


def _find_containers(location: Location, value: object, found: dict[int, _Contained]) -> None:
    """Find the containers, arrays and attributes of configurations in a value, each once, where it is, and a copy."""
    there = inner(value)
    if not is_filled(there) or id(there) in found:
        return
    location = location if there is value else location.below(("__dict__",))
    found[id(there)] = (location, there, there.copy())
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
    return pytree.tree_leaves(list(value) if isinstance(value, set) else value)


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
