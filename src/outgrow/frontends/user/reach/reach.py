"""Which locations outside does a step reach by names? Those that its code reads, and the code of what it calls.

    variables     that it closes over, and global ones
    attributes    of what is in a variable, or of the object that it is a method of: `self.count`, `config.loss.weight`
    entries       of dictionaries, under words: `state["step"]`; by an index, each of a few: `meters[name].total`
    modules       that its code imports itself, and what is in them

What it calls by name, a function, a method or an object of the user's, is looked at as well, with what it is given, and
so is all that wraps a function. Of a class that it calls, what makes an object is looked at, and all methods. What
torch calls is looked at for itself: forward passes of the modules in training, hooks, and the passes of a
`torch.autograd.Function`. Of a container that is used as a whole, the functions in it are looked at; of an object that
is, the methods that operators call. Of a configuration that is used as a whole, and of an object of an installed
package, whose code is not looked at, all numbers and containers may be read, and those of objects below it. What is
reached in other ways, as an attribute of what a function returns, is not seen.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from importlib.util import resolve_name
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch.utils._pytree as pytree
from numpy import ndarray
from torch import Tensor, nn
from torch.autograd import Function
from torch.optim import Optimizer

from outgrow.frontends.user.filling import is_container
from outgrow.frontends.user.lines import is_of_a_library
from outgrow.frontends.user.reach.configuration import NUMBERS, is_configuration, is_opaque, is_settled
from outgrow.frontends.user.reach.functions import behind, wrapped_by, wraps
from outgrow.frontends.user.reach.hooks import hooks
from outgrow.frontends.user.reach.locations import MISSING, Location, is_of_a_package, is_of_the_user, of_class
from outgrow.frontends.user.reach.reads import IMPORT, SUPER, reads
from outgrow.frontends.user.reach.values import EACH, Path

_WRITING = frozenset(("add", "append", "clear", "discard", "extend", "update"))
"""Methods of containers that write, and for which what is there does not count."""
_OF_KEYS = frozenset(("__contains__", "get", "items", "keys", "setdefault", "values"))
"""Methods of dictionaries that look at no entry, or only at the one that is asked for, or that is on a path then."""
_BLIND = frozenset(("callable", "hasattr", "id", "isinstance", "issubclass", "print", "super", "type"))
"""Functions of Python's that look at no content of what they are given."""
_PASSES = ("forward", "setup_context", "backward", "vmap", "jvp")
_MAKING = ("__new__", "__init__")
_NO_OPERATORS = frozenset(("__init__", "__new__", "__del__", "__repr__", "__str__", "__init_subclass__", "__setattr__"))
_PLAIN = (dict, list, tuple, deque, set, frozenset)
_OWNING = (*_PLAIN, ndarray, Tensor, nn.Module)
"""Whose methods read what they have."""
_MOST_FUNCTIONS = 1 << 12
_MOST_ITEMS, _FEW = 256, 64
_DEEPEST = 3
"""Objects of packages are looked into this far."""
_LONGEST = 16
"""No location is looked at that is further down, as an object that refers to itself would have."""
Locations = tuple[Location, ...]
Key = tuple[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Given:
    """Where what is given to a function may be, as far as that is known; or that it is named and may be called."""

    positions: tuple[Locations, ...] = ()
    keywords: tuple[tuple[str, Locations], ...] = ()
    is_called: bool = True

    def behind(self, *owners: Location) -> "_Given":
        """Return these behind others, as a method gets what it is called with behind its object."""
        return replace(self, positions=(*[(owner,) for owner in owners], *self.positions))

    def named(self, function: FunctionType) -> dict[str, Locations]:
        """Return them by the names of a function's parameters."""
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        found = dict(zip(names[: code.co_argcount], self.positions, strict=False))
        found |= {name: locations for name, locations in self.keywords if name in names}
        return {name: locations for name, locations in found.items() if locations}

    def beside(self, function: FunctionType) -> Iterator[Locations]:
        """Yield those for which a function has no names: it has them in a tuple or a dictionary."""
        code = function.__code__
        yield from self.positions[code.co_argcount :]
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        yield from (locations for name, locations in self.keywords if name not in names)

    def all(self) -> Iterator[Locations]:
        """Yield the locations of all of them."""
        yield from self.positions
        yield from (locations for _, locations in self.keywords)


_NAMED = _Given(is_called=False)


@dataclass(frozen=True, slots=True)
class Reached:
    """Locations; the keys of those at which something is used as a whole, by its entries, or only by its truth.

    `codes` are the functions that were looked at, with the code that they had.
    """

    locations: Locations
    whole: frozenset[Key]
    by_entries: frozenset[Key]
    asked: frozenset[Key]
    codes: tuple[tuple[FunctionType, CodeType], ...]


def reached(
    step: Callable[..., object],
    models: Iterable[nn.Module] = (),
    optimizers: Iterable[Optimizer] = (),
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
) -> Reached:
    """Return the locations that a step reaches when it trains some models and is called with some arguments.

    Of the arguments only those of which signatures do not know what is in them, functions, and what modules run.
    """
    models = tuple(models)
    reach = _Reach()
    given = (*args, *(kwargs or {}).values())
    for model in (*models, *[value for value in given if isinstance(value, nn.Module)]):
        root = Location.holding("model", model)
        for name, module in model.named_modules():
            reach.modules.setdefault(id(module), (module, root.below(tuple(name.split(".") if name else ()))))
    positions = tuple([reach.given("given", value) for value in args])
    reach.meet(step, _Given(positions, tuple((n, reach.given(n, v)) for n, v in (kwargs or {}).items())), is_step=True)
    for module, location in reach.modules.values():
        reach.meet(module, at=location)
    for function in (*hooks(models, optimizers), *filter(_is_function, given)):
        reach.meet(function, _Given())
    codes = {id(function): (function, function.__code__) for function in reach.functions.values()}
    whole, by_entries = frozenset(reach.whole), frozenset(reach.by_entries - reach.whole)
    asked = frozenset(reach.asked - reach.whole - by_entries)
    return Reached(tuple(reach.locations.values()), whole, by_entries, asked, tuple(codes.values()))


def _is_described(argument: object) -> bool:
    """Whether signatures know what is in an argument, or compare it by themselves."""
    return isinstance(argument, nn.Module | Optimizer | Tensor) or not is_opaque(argument)


def _is_function(value: object) -> bool:
    return isinstance(value, FunctionType | MethodType | partial)


@dataclass
class _Reach:
    """The locations that have been found, and the functions that have been looked at, with what they were given."""

    locations: dict[Key, Location] = field(default_factory=dict[Key, Location])
    whole: set[Key] = field(default_factory=set[Key])
    by_entries: set[Key] = field(default_factory=set[Key])
    asked: set[Key] = field(default_factory=set[Key])
    functions: dict[object, FunctionType] = field(default_factory=dict[object, FunctionType])
    holders: dict[tuple[str, int], Location] = field(default_factory=dict[tuple[str, int], Location])
    modules: dict[int, tuple[nn.Module, Location]] = field(default_factory=dict[int, tuple[nn.Module, Location]])
    looked_into: dict[int, tuple[object, int]] = field(default_factory=dict[int, tuple[object, int]])

    def given(self, name: str, value: object) -> Locations:
        """Return the location of an argument, if signatures do not describe what it is, or all that is in it."""
        leaves, structure = pytree.tree_flatten(value)
        undescribed = [None if _is_described(leaf) else leaf for leaf in leaves]
        is_known = all(leaf is None for leaf in undescribed)
        return () if is_known else (self._holding(name, pytree.tree_unflatten(undescribed, structure)),)

    def meet(self, value: Any, given: _Given = _NAMED, at: Location | None = None, *, is_step: bool = False) -> bool:
        """Look at what a callable names, which may be at a location, and which is given something.

        Return whether there was any code to look at.
        """
        match value:
            case MethodType():
                return self.meet(value.__func__, given.behind(self._holding("self", value.__self__)), is_step=is_step)
            case partial():
                positions = [(self._holding("given", item),) for item in value.args]
                keywords = [(name, (self._holding(name, item),)) for name, item in value.keywords.items()]
                merged = replace(given, positions=(*positions, *given.positions), keywords=(*keywords, *given.keywords))
                return self.meet(value.func, merged, is_step=is_step)
            case staticmethod():
                return self.meet(value.__func__, given)
            case type():
                return given.is_called and self._meet_made(value, given)
            case _ if not isinstance(value, FunctionType) and len(wrapped_by(value)) == 1:
                return self._meet_object(value, given, at, is_step=is_step)
            case _:
                *around, innermost = wrapped_by(value)
                met = [self._meet_function(function, given) for function in around]
                if isinstance(innermost, FunctionType):
                    return self._meet_function(innermost, given, is_step=is_step) or any(met)
                return self.meet(innermost, given, is_step=is_step) or any(met)

    def _meet_object(self, value: object, given: _Given, at: Location | None, *, is_step: bool) -> bool:
        """Look at what an object does when it is called, or a module that may be."""
        name = "forward" if isinstance(value, nn.Module) else "__call__"
        if isinstance(value, nn.Module) and name in vars(value):
            return self.meet(vars(value)[name], given)
        method = next(of_class(value, name), None)
        _, at = self.modules.get(id(value), (value, at))
        if isinstance(method, FunctionType) and (given.is_called or name == "forward"):
            return self.meet(method, given.behind(at or self._holding("self", value)), is_step=is_step)
        return False

    def _meet_made(self, kind: type, given: _Given) -> bool:
        """Look at what makes an object of a class, and at all that such an object may do."""
        met = False
        for name in dict.fromkeys(name for base in kind.__mro__ if is_of_the_user(base) for name in vars(base)):
            found = next(of_class(kind, name))
            if name in _MAKING:
                met |= self.meet(found, replace(given, positions=((), *given.positions)))
            else:
                for function in filter(_is_function, behind(found)):
                    self.meet(function, _Given())
        return met

    def _meet_function(self, function: object, given: _Given, *, is_step: bool = False) -> bool:
        if not isinstance(function, FunctionType) or (not is_step and is_of_a_library(function.__code__.co_filename)):
            return False
        unnamed = [location for locations in given.beside(function) for location in locations]
        self._use(unnamed)
        self._use_numbers(unnamed)
        known = given.named(function)
        key = (
            id(function),
            tuple((name, tuple(location.key for location in locations)) for name, locations in known.items()),
        )
        if key in self.functions or len(self.functions) >= _MOST_FUNCTIONS:
            return True
        self.functions[key] = function
        known = self._of_defaults(function) | known
        found = reads(function.__code__)
        for path in found.paths:
            for location in self._locations(function, path, known):
                self._note(location)
                self._note_written(location)
                self._follow(location, is_of_super=SUPER in path.names)
        for call in found.calls:
            handed = _Given(
                tuple([self._all_locations(function, paths, known) for paths in call.positions]),
                tuple([(name, self._all_locations(function, paths, known)) for name, paths in call.keywords]),
            )
            callees = list(self._locations(function, call.callee, known))
            met = [self._follow(callee, handed, is_of_super=SUPER in call.callee.names) for callee in callees]
            for callee in filter(_reads_all, callees):
                looks_at_keys = callee.path[-1] in _OF_KEYS and isinstance(callee.owner(), dict)
                if looks_at_keys and _names_in(callee.owner()) is not None:
                    self._use_entries(callee.above())
                else:
                    self._use([callee.above()])
            if call.callee.names == ("getattr",) and not call.callee.is_local:
                self._use_numbers(location for locations in handed.positions[:1] for location in locations)
            if not any(met) and (call.callee.is_local or call.callee.names[0] not in _BLIND):
                self._use(location for locations in handed.all() for location in locations)
        self._use(self._all_locations(function, found.whole, known))
        for location in self._all_locations(function, found.asked, known):
            self._note(location)
            self.asked.add(location.key)
        return True

    def _locations(self, function: FunctionType, path: Path, known: Mapping[str, Locations]) -> Iterator[Location]:
        """Yield where a path of a function goes on, below each of the entries of which it reads one."""
        for location in _locations(function, path, known):
            yield from self._expanded(location, _FEW)

    def _all_locations(
        self, function: FunctionType, paths: Sequence[Path], known: Mapping[str, Locations]
    ) -> Locations:
        """Return each once: a function that hands on to itself what it was given would see ever more of them."""
        found = (location for path in paths for location in self._locations(function, path, known))
        return tuple({location.key: location for location in found}.values())

    def _expanded(self, location: Location, most: int) -> Iterator[Location]:
        """Yield a location, or one for each entry on its path; where there are too many, what has them is a whole."""
        location = location.by_attributes()
        if EACH not in location.path:
            yield location
            return
        at = location.path.index(EACH)
        holder, rest = replace(location, path=location.path[:at]), location.path[at + 1 :]
        names = _names_in(holder.read())
        if names is None or len(names) > most:
            self._use((holder,))
            return
        self._use_entries(holder)
        for name in names:
            yield from self._expanded(holder.below((name, *rest)), most // len(names))

    def _note_written(self, location: Location) -> None:
        """Note all entries of a list, if it is one that is written by an index."""
        if location.path[-1] == "update" and isinstance(location.owner(), list | deque):
            for entry in self._expanded(location.above().below((EACH,)), _FEW):
                self._note(entry)

    def _use_entries(self, location: Location) -> None:
        self._note(location)
        self.by_entries.add(location.key)

    def _note(self, location: Location) -> None:
        self.locations.setdefault(location.key, location)

    def _use(self, locations: Iterable[Location]) -> None:
        """Note locations at which something is used as a whole, and look at what is called by that."""
        for location in locations:
            if location.key in self.whole:
                continue
            self.whole.add(location.key)
            self._note(location)
            value = location.read()
            if isinstance(value, dict | list | tuple):
                for item in list(value.values() if isinstance(value, dict) else value)[:_MOST_ITEMS]:
                    if _is_function(item):
                        self.meet(item, _Given())
            elif isinstance(value, type):
                self.meet(value, _Given())
            elif value is not MISSING and (is_opaque(value) or is_configuration(value)):
                for method in _operators(type(value)):
                    self.meet(method, _Given().behind(location))
            self._look_into(location, value)

    def _look_into(self, location: Location, value: object, depth: int = _DEEPEST) -> None:
        """Note all numbers of a configuration or an object of a package, what is in its containers, and its objects."""
        _, before = self.looked_into.get(id(value), (value, 0))
        if depth <= before or not (is_configuration(value) or is_of_a_package(type(value))):
            return
        self.looked_into[id(value)] = (value, depth)
        self._use_numbers([location])
        if isinstance(value, nn.Module):
            return
        for name, item in list(getattr(value, "__dict__", {}).items())[:_MOST_ITEMS]:
            below = location.below((name,))
            if not isinstance(item, _PLAIN):
                self._look_into(below, item, depth - 1)
            elif len(item) <= _MOST_ITEMS and is_settled(item):
                self._use([below])

    def _use_numbers(self, locations: Iterable[Location]) -> None:
        """Note all numbers that objects at locations have of their own, of which any may be read."""
        for location in locations:
            attributes = getattr(location.read(), "__dict__", {})
            for name in [name for name, value in attributes.items() if type(value) in NUMBERS][:_MOST_ITEMS]:
                self._note(location.below((name,)))

    def _follow(self, location: Location, given: _Given = _NAMED, *, is_of_super: bool = False) -> bool:
        """Look at what may be called at a location: what is there, or the method of the object before.

        Where it is one of `super()`, all methods of that name are looked at. Return whether there was any code.
        """
        value, owner = location.own(), location.owner()
        holder, name = location.above(), location.path[-1]
        if value is not MISSING and not is_of_super:
            met = self._meet_of(owner, value, given, location)
            return (wraps(value, of_class(owner, name)) and self._follow_method(location, given)) or met
        if owner is MISSING:
            return False
        if is_of_super and is_of_a_package(type(owner)):
            self._look_into(holder, owner)
        if (not isinstance(owner, _PLAIN) or _is_searched(owner, name)) and next(of_class(owner, name), None) is None:
            self._use((holder,))
        if name == "apply" and isinstance(owner, type) and issubclass(owner, Function):
            passes = [found for name in _PASSES for found in list(of_class(owner, name))[:1]]
            return any(list(map(self.meet, passes)))
        return self._follow_method(location, given, is_of_super=is_of_super)

    def _follow_method(self, location: Location, given: _Given, *, is_of_super: bool = False) -> bool:
        """Look at the method of this name of the object before, or at all of this name of its classes."""
        owner, holder, met = location.owner(), location.above(), False
        for found in list(of_class(owner, location.path[-1]))[: None if is_of_super else 1]:
            match found:
                case FunctionType() if not isinstance(owner, type):
                    met |= self.meet(found, given.behind(holder))
                case property() | cached_property():
                    for accessor in filter(_is_function, behind(found)):
                        met |= self.meet(accessor, _Given().behind(holder))
                case _:
                    for getter in list(of_class(type(found), "__get__"))[:1]:
                        met |= self.meet(getter, _Given().behind(self._holding("self", found), holder))
                    met |= self._meet_of(owner, found, given, None)
        return met

    def _meet_of(self, owner: object, value: object, given: _Given, at: Location | None) -> bool:
        if isinstance(value, classmethod):
            kind = owner if isinstance(owner, type) else type(owner)
            return self.meet(value.__func__, given.behind(self._holding("cls", kind)))
        return (callable(value) or isinstance(value, staticmethod)) and self.meet(value, given, at)

    def _of_defaults(self, function: FunctionType) -> dict[str, Locations]:
        """Return the parameters with defaults that a call may change, such as a dictionary."""
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
        pairs = (*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items())
        changeable = (
            (name, value) for name, value in pairs if isinstance(value, _OWNING) or hasattr(value, "__dict__")
        )
        return {name: (self._holding(name, value),) for name, value in changeable}

    def _holding(self, name: str, value: object) -> Location:
        """Return the location of an object that is in no variable, the same each time."""
        return self.holders.setdefault((name, id(value)), Location.holding(name, value))


def _reads_all(callee: Location) -> bool:
    """Whether what is called is a method that reads all that its object has."""
    owner = callee.owner()
    is_method = callee.own() is MISSING and isinstance(owner, _OWNING)
    only_writes = isinstance(owner, _PLAIN) and callee.path[-1] in _WRITING
    return is_method and not (only_writes and not isinstance(owner, Counter))  # which adds to what is there


def _is_searched(owner: object, name: object) -> bool:
    """Whether a word that is named of a list or a set is one that is looked for in it: it is none of its methods."""
    is_word = isinstance(name, str) and name not in _WRITING
    return is_word and not isinstance(owner, dict) and not hasattr(type(owner), str(name))


def _names_in(value: object) -> Collection[object] | None:
    """Return the keys of a dictionary, or the places in a list or a tuple; None for others, and for other keys."""
    if not (is_container(value) or isinstance(value, tuple)) or isinstance(value, set):
        return None
    names = value if isinstance(value, dict) else range(len(value))
    are_plain = all(type(name) in NUMBERS or isinstance(name, Enum) for name in names)
    return names if len(names) <= _FEW and are_plain else None


def _operators(kind: type) -> Iterator[FunctionType]:
    """Yield the methods of a class that operators, blocks and loops call: those with names like `__getitem__`."""
    for name, value in (item for base in kind.__mro__ if is_of_the_user(base) for item in vars(base).items()):
        if name.startswith("__") and name not in _NO_OPERATORS and isinstance(value, FunctionType):
            yield value


def _locations(function: FunctionType, path: Path, known: Mapping[str, Locations]) -> list[Location]:
    """Return where a path of a function goes on: from a parameter, a closure, a global variable, or a module."""
    name, *rest = [name for name in path.names if name != SUPER]
    free, cells = function.__code__.co_freevars, function.__closure__
    if path.is_local:
        found = [location.below(tuple(rest)) for location in known.get(name, ())]
    elif name == IMPORT:
        module = _resolved(rest[0], function)
        found = [] if module is None else [Location(sys.modules, (module, *rest[1:]))]
    elif name in free and cells is not None:
        found = [Location(cells[free.index(name)], (name, *rest))]
    else:
        found = [Location(function.__globals__, (name, *rest))] if name in function.__globals__ else []
    return [location for location in found if len(location.path) <= _LONGEST]


def _resolved(module: str, function: FunctionType) -> str | None:
    """Return the name of a module that a function imports; None for a relative one where it is in no package."""
    try:
        return resolve_name(module, function.__globals__.get("__package__"))
    except ImportError:
        return None
