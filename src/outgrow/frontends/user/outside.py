"""Which numbers does a step find outside, beside its models and optimizers? Those that its code reads by name.

    variables     that it closes over, and global ones
    attributes    of what is in a variable, or of the object that it is a method of: `self.count`, `config.loss.weight`
    entries       of dictionaries, under words: `state["step"]`

Where it calls a function or a method of the user's by name, that is looked at as well. A number, or a word, is part of
the graph, so a captured step serves while all of them are as they were. One that the step itself changes is put back
after the capture, and set after each call as the captured step left it. What is reached in other ways (by an index, by
`getattr`, through a module that is not trained) is not seen.
"""

import dis
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from outgrow.frontends.user.configuration import NUMBERS, content
from outgrow.frontends.user.drawn import is_filled
from outgrow.frontends.user.refusals import is_of_a_library

_MOST_FUNCTIONS = 64
_LONGEST = 4
"""Attributes of attributes are followed this far."""
_MISSING = object()
_Root: TypeAlias = dict[str, Any] | CellType
_OTHER = (ModuleType, type, FunctionType, nn.Module, Optimizer, torch.Tensor)
"""Objects whose attributes are no numbers of the user's, or are part of a signature anyway."""
_VARIABLES = (
    *("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_FAST"),
    *("STORE_GLOBAL", "STORE_NAME", "STORE_DEREF"),
)
_SEVERAL = frozenset(("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"))
"""Instructions that read two variables, of which an attribute is that of the second (Python 3.13, 3.14)."""
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")
_BETWEEN = frozenset(("CACHE", "COPY", "DUP_TOP", "EXTENDED_ARG", "PRECALL", "PUSH_NULL", "SWAP"))
"""Instructions that may stand between a variable and its attribute, or its key."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a number is: in a variable of a table, or in the cell of a closure, or below, by attributes and keys."""

    root: _Root
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """What to call it."""
        return ".".join(self.path)

    def read(self) -> object:
        """Return what is there now; `_MISSING` if nothing is."""
        table, name = self._end()
        return _MISSING if table is None else table.get(name, _MISSING)

    def may_come(self) -> bool:
        """Whether nothing is there, but may be at another time."""
        table, name = self._end()
        owner = Place(self.root, self.path[:-1]).read() if len(self.path) > 1 else None
        return table is not None and name not in table and not hasattr(type(owner), name)

    def write(self, value: object) -> None:
        """Put a number there, or what had not been there away."""
        if isinstance(self.root, CellType) and len(self.path) == 1:
            self.root.cell_contents = value
            return
        table, name = self._end()
        if table is not None and value is _MISSING:
            table.pop(name, None)
        elif table is not None:
            table[name] = value

    def _end(self) -> tuple[dict[str, Any] | None, str]:
        """Return the table in which it is, and its name there; no table if the way to it is not there."""
        table: dict[str, Any] | None = _variables(self.root, self.path[0])
        for name in self.path[:-1]:
            table = None if table is None else _below(table.get(name, _MISSING))
        return table, self.path[-1]


@dataclass(frozen=True, slots=True)
class Changed:
    """A number that a step has changed, and what it is afterwards."""

    place: Place
    value: object

    def leave(self) -> None:
        """Set it as the step does."""
        self.place.write(self.value)


@dataclass(frozen=True)
class Outside:
    """The numbers outside of a step, at some time."""

    numbers: tuple[tuple[Place, object], ...] = ()

    @staticmethod
    def of(step: Callable[..., object]) -> "Outside":
        """Find and note them."""
        reach = _Reach()
        reach.meet(step, is_step=True)
        noted = ((place, place.read()) for place in reach.places.values())
        return Outside(tuple((place, value) for place, value in noted if _is_number(value) or place.may_come()))

    def still_hold(self) -> bool:
        """Whether all of them are what they were, to the last bit."""
        return all(_is_same(value, place.read()) for place, value in self.numbers)

    def changed(self) -> tuple[Changed, ...]:
        """Return those that are other numbers now."""
        now = ((place, value, place.read()) for place, value in self.numbers)
        return tuple(Changed(place, new) for place, value, new in now if _is_number(new) and not _is_same(value, new))

    def put_back(self) -> None:
        """Make them what they were, except where something else is now."""
        changed = {id(item.place) for item in self.changed()}
        for place, value in self.numbers:
            if id(place) in changed:
                place.write(value)


@dataclass
class _Reach:
    """The places that the code of a step names, and the functions that have been looked at."""

    places: dict[tuple[int, tuple[str, ...]], Place] = field(default_factory=dict[tuple[int, tuple[str, ...]], Place])
    functions: set[int] = field(default_factory=set[int])

    def meet(self, value: object, known: Mapping[str, Place] | None = None, *, is_step: bool = False) -> None:
        """Look at what a callable names; of its parameters some are `known` to be what is at a place."""
        match value:
            case MethodType():
                owner = Place({"self": value.__self__}, ("self",))
                self.meet(value.__func__, _of_parameters(value.__func__, [owner]), is_step=is_step)
            case partial():
                given = [Place({"given": item}, ("given",)) for item in value.args]
                named = {name: Place({name: item}, (name,)) for name, item in value.keywords.items()}
                self.meet(value.func, _of_parameters(value.func, given) | named, is_step=is_step)
            case FunctionType():
                function = inspect.unwrap(value)
                if isinstance(function, FunctionType):
                    self._meet_function(function, known or {}, is_step=is_step)
            case _:
                call = vars(type(value)).get("__call__")
                if is_step and isinstance(call, FunctionType):
                    self.meet(MethodType(call, value), is_step=True)

    def _meet_function(self, function: FunctionType, known: Mapping[str, Place], *, is_step: bool) -> None:
        is_foreign = not is_step and is_of_a_library(function.__code__.co_filename)
        if is_foreign or id(function) in self.functions or len(self.functions) >= _MOST_FUNCTIONS:
            return
        self.functions.add(id(function))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        variables, own = _of_defaults(function) | dict(known), function.__code__.co_cellvars
        for is_local, path in _paths(function.__code__):
            name, *rest = path
            if name in variables:
                place = Place(variables[name].root, (*variables[name].path, *rest))
            elif is_local or name in own:
                continue
            elif name in cells:
                place = Place(cells[name], path)
            elif name in function.__globals__:
                place = Place(function.__globals__, path)
            else:
                continue
            self.places.setdefault((id(place.root), place.path), place)
            self._follow(place)

    def _follow(self, place: Place) -> None:
        """Look at the function that is at a place, or at the method of what is there before."""
        value = place.read()
        if isinstance(value, FunctionType | partial | MethodType):
            self.meet(value)
        elif value is _MISSING and len(place.path) > 1:
            owner = Place(place.root, place.path[:-1])
            method = getattr(type(owner.read()), place.path[-1], None)
            if isinstance(method, FunctionType) and _below(owner.read()) is not None:
                self.meet(method, _of_parameters(method, [owner]))


@cache
def _paths(code: CodeType) -> tuple[tuple[bool, tuple[str, ...]], ...]:
    """Return what a code reads by name, with attributes and words behind it, `("self", "count")`, and if that is local.

    Of functions that are defined in it, only what is not local to them.
    """
    found: dict[tuple[bool, tuple[str, ...]], None] = {}
    is_local, path = False, ()
    for item in dis.get_instructions(code):
        kind, name = item.opname, str(item.argval[-1] if item.opname in _SEVERAL else item.argval)
        if isinstance(item.argval, CodeType):
            found |= dict.fromkeys(inner for inner in _paths(item.argval) if not inner[0])
        if kind in _BETWEEN:
            continue
        if kind == "LOAD_CONST" and path:
            found |= {(is_local, (*path, name)): None} if isinstance(item.argval, str) else {}
            continue
        if kind.startswith(_VARIABLES):
            is_local, path = kind.startswith("LOAD_FAST"), (name,)
        elif kind.startswith(_ATTRIBUTES) and path:
            path = (*path, name)
        elif not kind.endswith("SUBSCR"):
            path = ()
        if 0 < len(path) <= _LONGEST:
            found[is_local, path] = None
    return tuple(found)


def _of_parameters(function: object, values: list[Place]) -> dict[str, Place]:
    """Return which of the first parameters of a function are known."""
    wrapped = inspect.unwrap(function) if isinstance(function, FunctionType) else function
    names = wrapped.__code__.co_varnames if isinstance(wrapped, FunctionType) else ()
    return dict(zip(names, values, strict=False))


def _of_defaults(function: FunctionType) -> dict[str, Place]:
    """Return the parameters with defaults that a call may change, such as a dictionary."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    pairs = (*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items())
    return {name: Place({name: value}, (name,)) for name, value in pairs if _below(value) is not None}


def _variables(root: _Root, name: str) -> dict[str, Any] | None:
    if isinstance(root, dict):
        return root
    return {name: root.cell_contents} if is_filled(root) else None


def _below(value: object) -> dict[str, Any] | None:
    """Return the entries or the attributes of a value that may hold numbers of the user's."""
    if isinstance(value, dict):
        return value
    return vars(value) if hasattr(value, "__dict__") and not isinstance(value, _OTHER) else None


def _is_number(value: object) -> bool:
    return type(value) in NUMBERS


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and content(one) == content(other)
