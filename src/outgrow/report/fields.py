"""How is JSON or TOML read that may be damaged? Field by field, each of a stated type; what is wrong is named by path.

Fields({"budget": {"limit_bytes": "x"}}, "plan").fields("budget").record(Budget)
InvalidPlan: plan.budget.limit_bytes is "x", not an integer.
"""

import json
import math
from collections.abc import Callable, Collection
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from outgrow.errors import InvalidPlan, OutgrowError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Kind = TypeVar("_Kind")
_Record = TypeVar("_Record", bound="DataclassInstance")


_MOST = 1 << 512
"""Below this whole numbers can be calculated with as floats."""


class Fields:
    """The fields of one object, found at `path`. Every reader raises `error` for what it does not find."""

    def __init__(self, data: object, path: str, error: type[OutgrowError] = InvalidPlan) -> None:
        if not isinstance(data, dict):
            raise error(f"{path} is {_spelled(data)}, not an object.")
        self.data: dict[object, object] = data
        self.path = path
        self.error = error

    def text(self, key: str) -> str:
        return self._of_type(key, str, "a string")

    def integer(self, key: str) -> int:
        found = self._of_type(key, int, "an integer")
        if abs(found) >= _MOST:
            raise self.wrong(key, "an integer of at most 512 bits")
        return found

    def number(self, key: str) -> float:
        return _as_float(self._of_type(key, (int, float), "a number"))

    def flag(self, key: str) -> bool:
        item = self.item(key)
        if not isinstance(item, bool):
            raise self.wrong(key, "true or false")
        return item

    def fields(self, key: str) -> "Fields":
        return Fields(self.item(key), f"{self.path}.{key}", self.error)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._all(key, "a string", lambda item: isinstance(item, str)))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of numbers; null stands for one that JSON cannot express."""
        items = self._all(key, "a number", lambda item: item is None or _is_a(int | float, item))
        return tuple(math.nan if item is None else _as_float(item) for item in items)

    def integers(self, key: str) -> tuple[int, ...]:
        """Return a list of integers."""
        return tuple(self._all(key, "an integer", lambda item: _is_a(int, item)))

    def each(self, key: str, read: Callable[["Fields"], _Kind]) -> tuple[_Kind, ...]:
        """Return what `read` makes of each object of a list."""
        items = self._of_type(key, list, "a list")
        return tuple(read(Fields(item, f"{self.path}.{key}[{at}]", self.error)) for at, item in enumerate(items))

    def record(self, kind: type[_Record], *, newer: Collection[str] = (), **known: object) -> _Record:
        """Return the record of this kind, a dataclass, with a field for each of its own; what is `known` is not read.

        These are strings, numbers, truth values and records, any of them or None, and tuples of strings, integers,
        floats or records. Those that are `newer` may be missing, since older files lack them: they have their defaults.
        """
        types = get_type_hints(kind)
        names: list[str] = [field.name for field in fields_of(kind)]
        asked = [name for name in names if name not in known and (name in self.data or name not in newer)]
        return kind(**known, **{name: self._typed(name, types[name]) for name in asked})

    def _typed(self, key: str, kind: Any) -> object:
        """Return a field as its annotation says."""
        if get_origin(kind) is UnionType:
            (other,) = [one for one in get_args(kind) if one is not NoneType]
            return None if self.item(key) is None else self._typed(key, other)
        if get_origin(kind) is tuple:
            return self._several(key, get_args(kind)[0])
        if isinstance(kind, type) and is_dataclass(kind):
            return self.fields(key).record(kind)
        read = {str: self.text, int: self.integer, float: self.number, bool: self.flag}[kind]
        return read(key)

    def _several(self, key: str, kind: Any) -> tuple[object, ...]:
        if isinstance(kind, type) and is_dataclass(kind):
            return self.each(key, lambda item: item.record(kind))
        return {str: self.texts, int: self.integers, float: self.numbers}[kind](key)

    def item(self, key: str) -> object:
        if key not in self.data:
            raise self.error(f"{self.path} has no {key!r}.")
        return self.data[key]

    def wrong(self, key: str, wanted: str) -> OutgrowError:
        """Return the error that says what a field is, and that it is not what is wanted."""
        return self.error(f"{self.path}.{key} is {_spelled(self.item(key))}, not {wanted}.")

    def _all(self, key: str, name: str, fits: Callable[[object], bool]) -> list[Any]:
        """Return a list of which all items fit; `name` is what each of them should be."""
        items = self._of_type(key, list, "a list")
        for at, item in enumerate(items):
            if not fits(item):
                raise self.error(f"{self.path}.{key}[{at}] is {_spelled(item)}, not {name}.")
        return items

    def _of_type(self, key: str, kind: type[_Kind] | tuple[type[_Kind], ...], name: str) -> _Kind:
        item = self.item(key)
        if not isinstance(item, kind) or isinstance(item, bool):
            raise self.wrong(key, name)
        return item


def _is_a(kind: type[int] | UnionType, item: object) -> bool:
    """Whether an item is of a kind of numbers; a truth value is of none."""
    return isinstance(item, kind) and not isinstance(item, bool)


def text_of(path: Path, wrong: Callable[[str], OutgrowError]) -> str:
    """Return the text of a file; raises what `wrong` makes of the reason where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise wrong(f"{error.strerror}") from error
    except UnicodeDecodeError as error:
        raise wrong("it is not text") from error


def _as_float(number: float) -> float:
    """Return a number as a float; an integer of more digits than one can hold is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _spelled(item: object) -> str:
    text = json.dumps(item, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
