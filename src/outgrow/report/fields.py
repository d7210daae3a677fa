"""How is JSON or TOML read that may be damaged? Field by field, each of a stated type; what is wrong is named by path.

Fields({"budget": {"limit_bytes": "x"}}, "plan").fields("budget").integer("limit_bytes")
InvalidPlan: plan.budget.limit_bytes is "x", not an integer.
"""

import json
import math
from collections.abc import Callable
from typing import TypeVar

from outgrow.errors import InvalidPlan, OutgrowError

_Kind = TypeVar("_Kind")


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

    def optional_text(self, key: str) -> str | None:
        return None if self.item(key) is None else self.text(key)

    def newer_integer(self, key: str) -> int:
        """Return an integer that older files lack; there it is 0."""
        return self.integer(key) if key in self.data else 0

    def newer_flag(self, key: str) -> bool:
        """Return true or false; it is false in older files, which lack it."""
        return self.flag(key) if key in self.data else False

    def integer(self, key: str) -> int:
        return self._of_type(key, int, "an integer")

    def number(self, key: str) -> float:
        number = self._of_type(key, (int, float), "a number")
        try:
            return float(number)
        except OverflowError:  # an integer of more digits than a float can hold
            return math.inf

    def flag(self, key: str) -> bool:
        item = self.item(key)
        if not isinstance(item, bool):
            raise self.wrong(key, "true or false")
        return item

    def fields(self, key: str) -> "Fields":
        return Fields(self.item(key), f"{self.path}.{key}", self.error)

    def texts(self, key: str) -> tuple[str, ...]:
        items = self._of_type(key, list, "a list")
        for at, item in enumerate(items):
            if not isinstance(item, str):
                raise self.error(f"{self.path}.{key}[{at}] is {_spelled(item)}, not a string.")
        return tuple(items)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of numbers; null stands for one that JSON cannot express."""
        items = self._of_type(key, list, "a list")
        for at, item in enumerate(items):
            if item is not None and (not isinstance(item, int | float) or isinstance(item, bool)):
                raise self.error(f"{self.path}.{key}[{at}] is {_spelled(item)}, not a number.")
        return tuple(math.nan if item is None else float(item) for item in items)

    def each(self, key: str, read: Callable[["Fields"], _Kind]) -> tuple[_Kind, ...]:
        """Return what `read` makes of each object of a list."""
        items = self._of_type(key, list, "a list")
        return tuple(read(Fields(item, f"{self.path}.{key}[{at}]", self.error)) for at, item in enumerate(items))

    def item(self, key: str) -> object:
        if key not in self.data:
            raise self.error(f"{self.path} has no {key!r}.")
        return self.data[key]

    def wrong(self, key: str, wanted: str) -> OutgrowError:
        """Return the error that says what a field is, and that it is not what is wanted."""
        return self.error(f"{self.path}.{key} is {_spelled(self.item(key))}, not {wanted}.")

    def _of_type(self, key: str, kind: type[_Kind] | tuple[type[_Kind], ...], name: str) -> _Kind:
        item = self.item(key)
        if not isinstance(item, kind) or isinstance(item, bool):
            raise self.wrong(key, name)
        return item


def _spelled(item: object) -> str:
    text = json.dumps(item, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
