"""What is known of a value that a function works with? On which paths it may have been read, or what is in it.

A path begins with a variable. What a loop over `zip(container, other)` finds, or one over `container.items()`, is on
the paths of the entries, and so is what `getattr(value, "word")` or `value.get("word")` reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

EACH = "[]"
"""Stands in a path for each entry of the value before: which one it is, only the step's Python says."""
_GETTING = frozenset(("get", "setdefault"))
"""Methods of dictionaries that read the entry under a word."""


@dataclass(frozen=True, slots=True)
class Path:
    """A variable, of the function itself or from outside, and what is read of it."""

    is_local: bool
    names: tuple[str, ...]

    def below(self, name: str) -> "Path":
        """Return the path of an attribute, or of an entry."""
        return Path(self.is_local, (*self.names, name))


Paths = tuple[Path, ...]


def _builtins(*names: str) -> tuple[Paths, ...]:
    """What is called where one of Python's functions is."""
    return tuple([(Path(is_local=False, names=(name,)),) for name in names])


_BY_WORD = _builtins("getattr", "hasattr")
"""Functions that read an attribute under a word, or say whether there is one."""
OF_KINDS = _builtins("isinstance", "type")
"""Functions that say of which type a value is."""
_SAME_ITEMS = _builtins("iter", "list", "reversed", "sorted", "tuple")
"""Functions that give what goes through the items of a value."""
_ENUMERATE, _ZIP = _builtins("enumerate", "zip")
GOING_THROUGH = (*_builtins("iter", "list", "reversed", "tuple"), _ENUMERATE, _ZIP)
"""Functions that look at no item."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value on the stack: the paths on which it may have been read, or a constant.

    Of one that is on no path, such as an iterator, its `items` may be on some; those of a tuple are in `parts`, too.
    """

    paths: Paths = ()
    constant: object = None
    items: "Value | None" = None
    parts: "tuple[Value, ...]" = ()

    def each(self) -> "Value":
        """Return what a loop over it finds."""
        return self.below(None)

    def merged(self, other: "Value") -> "Value":
        """Return this value or another one, of which nobody knows which it is."""
        if self == other:
            return self
        items = [item.items for item in (self, other) if item.items is not None]
        paths = tuple(dict.fromkeys((*self.paths, *other.paths)))
        return replace(self, paths=paths, items=reduce(Value.merged, items) if items else None, parts=())

    def along(self, names: Sequence[str]) -> Iterator[Path]:
        """Yield the paths of what is read of it, by names."""
        for path in self.paths:
            yield Path(path.is_local, (*path.names, *names))
        for part in self.parts if names[:1] == [EACH] else ():
            yield from part.along(names[1:])

    def taken_apart(self, count: int) -> "tuple[Value, ...]":
        """Return what is in it, if it has so many parts."""
        return self.parts if len(self.parts) == count else (self.each(),) * count

    def below(self, name: object) -> "Value":
        """Return what is read of it by a word or by an index, or what is in a slice of it."""
        if isinstance(name, slice):
            return Value(items=self.each())
        found = Value(tuple([path.below(name if isinstance(name, str) else EACH) for path in self.paths]))
        if self.items is None or isinstance(name, str):
            return found
        return found.merged(self.items) if found.paths else self.items


UNKNOWN = Value()


def built(parts: Sequence[Value]) -> Value:
    """Return a tuple, or a list, of some values."""
    items = Value(tuple(dict.fromkeys(path for part in parts for path in part.paths)))
    return Value(items=items, parts=tuple(parts))


def named_by_word(callee: Paths, given: Sequence[Value]) -> Value | None:
    """Return what `getattr(value, "word")`, `value.get("word")` or `vars(value)` reads; None for other calls.

    What `hasattr` says of a word is asked of what `getattr` would read.
    """
    if callee == (Path(is_local=False, names=("vars",)),) and len(given) == 1:
        return given[0].below("__dict__")
    if callee in _BY_WORD and len(given) > 1 and isinstance(given[1].constant, str):
        return given[0].below(given[1].constant)
    if callee and given and isinstance(given[0].constant, str):
        owners = [replace(path, names=path.names[:-1]) for path in callee if len(path.names) > 1]
        if len(owners) == len(callee) and all(path.names[-1] in _GETTING for path in callee):
            return Value(tuple(owners)).below(given[0].constant)
    return None


def entry_of(callee: Paths, given: Sequence[Value]) -> Value | None:
    """Return what `value.get(key)` reads, where nobody knows the key; None for other calls."""
    owners = [replace(path, names=path.names[:-1]) for path in callee if path.names[-1] in _GETTING]
    return Value(tuple(owners)).below(None) if given and owners and len(owners) == len(callee) else None


def gone_through(callee: Paths, given: Sequence[Value]) -> Value | None:
    """Return what `enumerate(value)`, `zip(value, other)`, `list(value)` or `value.items()` has in it, or None."""
    if callee in _SAME_ITEMS and given:
        return Value(items=given[0].each())
    if callee == _ENUMERATE and given:
        return Value(items=built((UNKNOWN, given[0].each())))
    if callee == _ZIP:
        return Value(items=built([value.each() for value in given]))
    methods = {path.names[-1] for path in callee}
    each = Value(tuple([replace(path, names=path.names[:-1]) for path in callee if len(path.names) > 1])).each()
    match [*methods]:
        case ["items"]:
            return Value(items=built((UNKNOWN, each)))
        case ["values"]:
            return Value(items=each)
        case _:
            return None
