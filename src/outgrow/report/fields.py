"""How is JSON read that may be damaged? Field by field, each of a stated type; what is wrong is named by its
path.

Fields({"budget": {"limit_bytes": "x"}}, "plan").fields("budget").integer("limit_bytes")
InvalidPlan: plan.budget.limit_bytes is "x", not an integer.
"""

import json
import math
from collections.abc import Callable
from typing import TypeVar

from outgrow.errors import InvalidPlan

_Kind = TypeVar("_Kind")


class Fields:
    """The fields of one JSON object, found at `path`. Every reader raises `InvalidPlan` for what it does not
    find.
    """

    def __init__(self, data: object, path: str) -> None:
        if not isinstance(data, dict):
            raise InvalidPlan(f"{path} is {_spelled(data)}, not an object.")
        self.data: dict[object, object] = data
        self.path = path

    def text(self, key: str) -> str:
        return self._of_type(key, str, "a string")

    def optional_text(self, key: str) -> str | None:
        return None if self.item(key) is None else self.text(key)

    def newer_integer(self, key: str) -> int:
        """Return an integer that older files lack; there it is 0."""
        return self.integer(key) if key in self.data else 0

    def integer(self, key: str) -> int:
        return self._of_type(key, int, "an integer")

    def number(self, key: str) -> float:
        return float(self._of_type(key, (int, float), "a number"))

    def fields(self, key: str) -> "Fields":
        return Fields(self.item(key), f"{self.path}.{key}")

    def texts(self, key: str) -> tuple[str, ...]:
        items = self._of_type(key, list, "a list")
        for at, item in enumerate(items):
            if not isinstance(item, str):
                raise InvalidPlan(f"{self.path}.{key}[{at}] is {_spelled(item)}, not a string.")
        return tuple(items)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of numbers; null stands for one that JSON cannot express."""
        items = self._of_type(key, list, "a list")
        for at, item in enumerate(items):
            if item is not None and (not isinstance(item, int | float) or isinstance(item, bool)):
                raise InvalidPlan(f"{self.path}.{key}[{at}] is {_spelled(item)}, not a number.")
        return tuple(math.nan if item is None else float(item) for item in items)

    def each(self, key: str, read: Callable[["Fields"], _Kind]) -> tuple[_Kind, ...]:
        """Return what `read` makes of each object of a list."""
        items = self._of_type(key, list, "a list")
        return tuple(read(Fields(item, f"{self.path}.{key}[{at}]")) for at, item in enumerate(items))

    def item(self, key: str) -> object:
        if key not in self.data:
            raise InvalidPlan(f"{self.path} has no {key!r}.")
        return self.data[key]

    def _of_type(self, key: str, kind: type[_Kind] | tuple[type[_Kind], ...], name: str) -> _Kind:
        item = self.item(key)
        if not isinstance(item, kind) or isinstance(item, bool):
            raise InvalidPlan(f"{self.path}.{key} is {_spelled(item)}, not {name}.")
        return item


def _spelled(item: object) -> str:
    text = json.dumps(item)
    return text if len(text) <= 40 else f"{text[:37]}..."
