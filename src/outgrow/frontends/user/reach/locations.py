"""Where is a value that a step finds outside? In a variable, or below one, by attributes and words.

An attribute is that of the object itself or, where it has none of the name, that of its class, as Python looks it up,
but no code of the user's runs for it: a property is no value. A tuple has the attributes that its class gives names;
where one is to be another, so is the tuple. Modules and classes of libraries are not looked into.
"""

import sys
from collections import ChainMap, UserDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, TypeAlias

from torch import Tensor, nn

from outgrow.frontends.user.lines import in_package, is_of_a_library
from outgrow.frontends.user.reach.configuration import TOLD_APART, is_opaque
from outgrow.frontends.user.reach.functions import has_value

MISSING = object()
_SHOWING = frozenset(("rich", "tqdm"))
"""Packages whose objects show how far a training is, and decide nothing."""
_STATED = 1 << 9
"""The flag `Py_TPFLAGS_HEAPTYPE` of classes that statements make."""
Root: TypeAlias = dict[str, Any] | CellType


@dataclass(frozen=True, slots=True, eq=False)
class Location:
    """Where a value is: in a variable of a table, or in the cell of a closure, or below: by attributes, keys, places.

    A value that is `held` is in no variable of the program; its table is made for it.
    """

    root: Root
    path: tuple[Any, ...]
    held: object = None

    @staticmethod
    def holding(name: str, value: object) -> "Location":
        """Return a location for a value that is in no variable."""
        return Location({name: value}, (name,), value)

    @property
    def name(self) -> str:
        """What to call it."""
        return ".".join(map(str, self.path))

    @property
    def key(self) -> tuple[int, tuple[Any, ...]]:
        """What is the same for two of the same location, also where each holds the value in a variable of its own."""
        return id(self.root if self.held is None else self.held), self.path

    def below(self, names: tuple[Any, ...]) -> "Location":
        """Return the location of something that is read of what is here."""
        return Location(self.root, (*self.path, *names), self.held)

    def is_below(self, other: "Location") -> bool:
        """Whether it is read of what is at another location."""
        (root, path), (above, names) = self.key, other.key
        return root == above and len(path) > len(names) and path[: len(names)] == names

    def by_attributes(self) -> "Location":
        """Return the same location, by way of the attributes of dictionaries where they have no such entry."""
        value, path = self._variable(), [*self.path[:1]]
        for name in self.path[1:]:
            if isinstance(value, dict) and name not in value and hasattr(value, "__dict__") and name in vars(value):
                path.append("__dict__")
                value = vars(value)
            path.append(name)
            value = _part(value, name)
        return Location(self.root, tuple(path), self.held)

    def above(self) -> "Location":
        """Return the location of what it is read of."""
        return Location(self.root, self.path[:-1], self.held)

    def read(self) -> object:
        """Return what is there now; `MISSING` if nothing is."""
        found = self._variable()
        for name in self.path[1:]:
            found = _part(found, name)
        return found

    def own(self) -> object:
        """Return what is there and not only in the class of what it is read of."""
        if len(self.path) == 1:
            return self._variable()
        return _own_part(self.owner(), self.path[-1])

    def owner(self) -> object:
        """Return what it is read of; `MISSING` for a variable."""
        return MISSING if len(self.path) == 1 else self.above().read()

    def is_in_a_table(self) -> bool:
        """Whether it is a parameter, a buffer or a module in the tables of a module."""
        owner, name = self.owner(), self.path[-1]
        tables = (owner._modules, owner._parameters, owner._buffers) if isinstance(owner, nn.Module) else ()
        return any(name in table for table in tables)

    def may_come(self) -> bool:
        """Whether nothing is there, but may be at another time."""
        if self.root is sys.modules and len(self.path) == 1:
            return self.own() is MISSING
        owner, name = self.owner(), self.path[-1]
        if owner is MISSING or isinstance(owner, nn.Module) or _table(owner) is None:
            return False
        return self.own() is MISSING and not hasattr(owner if isinstance(owner, type) else type(owner), name)

    def is_signed(self, signed: frozenset[int]) -> bool:
        """Whether signatures describe it, since it hangs in one of the modules or optimizers of these identities."""
        found, is_signed = self._variable(), False
        for name in self.path[1:]:
            is_apart = is_opaque(found) or isinstance(found, nn.Module | FunctionType | type | UserDict | ChainMap)
            is_signed = (is_signed and not is_apart) or id(found) in signed
            is_signed = is_signed and _own_part(found, name) is not MISSING
            found = _part(found, name)
        return is_signed

    def is_within(self, signed: frozenset[int]) -> bool:
        """Whether signatures describe what is there, or would if anything were."""
        if self.is_signed(signed) or len(self.path) == 1:
            return self.is_signed(signed)
        return id(self.owner()) in signed or self.above().is_signed(signed)

    def write(self, value: object) -> None:
        """Put a value there, or what had not been there away."""
        owner, name = self.owner(), self.path[-1]
        table = self.root if len(self.path) == 1 else _table(owner)
        if isinstance(owner, list | deque) and type(name) is int:
            if value is not MISSING and name < len(owner):
                owner[name] = value
        elif isinstance(owner, tuple) and _place(owner, name) is not None:
            self._put_into_tuple(owner, value)
        elif isinstance(table, CellType):
            table.cell_contents = value
        elif isinstance(owner, type) or (owner is not MISSING and (table is None or _is_slot(owner, name))):
            _set(owner, name, value)
        elif table is not None and value is MISSING:
            table.pop(name, None)
        elif table is not None:
            table[name] = value

    def _put_into_tuple(self, owner: Any, value: object) -> None:
        """Put another tuple in the place of the one that has this entry, unless it has the value."""
        if self.own() is not value and value is not MISSING:
            at = _place(owner, self.path[-1])
            items = [value if place == at else item for place, item in enumerate(owner)]
            self.above().write(owner._make(items) if hasattr(owner, "_make") else tuple(items))

    def _variable(self) -> object:
        if isinstance(self.root, CellType):
            return self.root.cell_contents if has_value(self.root) else MISSING
        return self.root.get(self.path[0], MISSING)


def of_class(owner: object, name: Any) -> Iterator[object]:
    """Yield what the classes of an object, or of a class, have under a name, those of the user's, the nearest first."""
    for kind in owner.__mro__ if isinstance(owner, type) else type(owner).__mro__:
        if is_of_the_user(kind) and name in vars(kind):
            yield vars(kind)[name]


@cache
def is_of_the_user(kind: type) -> bool:
    """Whether a class is neither Python's nor of an installed package.

    One that `exec` makes where no `__name__` is says that it is of `builtins`, whose own are made by no statement.
    """
    return not _is_library(kind.__module__) or (kind.__module__ == "builtins" and bool(kind.__flags__ & _STATED))


@cache
def is_of_a_package(kind: type) -> bool:
    """Whether a class, or one among its bases, is of an installed package, and others do not describe it."""
    if issubclass(kind, (type, Tensor, *TOLD_APART)) or kind.__module__.partition(".")[0] in _SHOWING:
        return False
    files = (_file(base.__module__) for base in kind.__mro__)
    return any(file is not None and in_package(file) is not None for file in files)


@cache
def _is_library(name: str) -> bool:
    file = _file(name)
    return name in sys.builtin_module_names or (file is not None and is_of_a_library(file))


def _file(module: str) -> str | None:
    """Return the file of a module by its name; None if it has none, or is not there."""
    return getattr(sys.modules.get(module), "__file__", None)


def _table(value: object) -> dict[str, Any] | None:
    """Return the entries or the attributes that a value has of its own, if they may be of the user's."""
    if isinstance(value, dict):
        return value
    is_other = isinstance(value, Tensor) or (isinstance(value, ModuleType) and _is_library(value.__name__))
    if is_other or not hasattr(value, "__dict__"):
        return None
    return dict(vars(value)) if isinstance(value, type) else vars(value)


def _own_part(value: object, name: Any) -> object:
    """Return an entry or an attribute that a value has of its own."""
    if isinstance(value, list | deque) and type(name) is int:
        return value[name] if name < len(value) else MISSING
    if isinstance(value, type):
        return vars(value).get(name, MISSING) if is_of_the_user(value) else MISSING
    if isinstance(value, tuple) and (place := _place(value, name)) is not None:
        return tuple[object, ...].__getitem__(value, place)
    table = _table(value)
    if name == "__dict__" and hasattr(value, "__dict__"):
        return MISSING if table is None else vars(value) if isinstance(value, dict) else table
    if table is not None and name in table:
        return table[name]
    if isinstance(value, nn.Module):
        for held in (value._modules, value._parameters, value._buffers):
            if name in held:
                return held[name]
    return _in_slot(value, name) if _is_slot(value, name) else MISSING


def _part(value: object, name: Any) -> object:
    """Return an entry or an attribute of a value."""
    own = _own_part(value, name)
    if own is not MISSING or type(value) is dict or _is_slot(value, name):
        return own
    return next(of_class(value, name), MISSING)


def _place(value: Any, name: Any) -> int | None:
    """Return where in a tuple an entry is, by its place or by the name that it may have; None if there is no such."""
    if type(name) is int:
        return name if name < len(value) and (type(value) is tuple or hasattr(type(value), "_make")) else None
    fields = value._fields if hasattr(type(value), "_fields") else ()
    return fields.index(name) if name in fields else None


def _is_slot(value: object, name: Any) -> bool:
    return not isinstance(value, type) and isinstance(next(of_class(value, name), None), MemberDescriptorType)


def _in_slot(value: object, name: Any) -> object:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return MISSING


def _set(owner: object, name: str, value: object) -> None:
    """Set an attribute of a class or one in a slot, or delete it."""
    set_there = partial(type.__setattr__, owner) if isinstance(owner, type) else partial(object.__setattr__, owner)
    if value is not MISSING:
        set_there(name, value)
    elif _own_part(owner, name) is not MISSING:
        delattr(owner, name)
