"""How are containers copied, compared and filled? By which objects are in them: none is asked whether it is equal."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, TypeGuard

_KINDS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)

Container = list[object] | dict[object, object] | set[object] | deque[object]


def is_container(value: object) -> TypeGuard[Container]:
    """Whether a value is a container that can be copied and filled; types derived from one may not allow it."""
    return type(value) in _KINDS


def entries(container: Container) -> Iterable[object]:
    """Return what is in a container."""
    return container.values() if isinstance(container, dict) else container


def differ(container: Container, copy: Container, is_same: Callable[[object, object], bool] = is_) -> bool:
    """Whether other objects are in a container, or in another order."""
    if isinstance(container, dict) and isinstance(copy, dict):
        return differ([*container, *container.values()], [*copy, *copy.values()], is_same)
    if len(container) != len(copy):
        return True
    return not all(is_same(one, other) for one, other in zip(container, copy, strict=True))


def refill(container: Any, copy: Any) -> None:
    """Let a container have what a copy of it has."""
    container.clear()
    match container, copy:
        case (list() | deque(), list() | deque()):
            container.extend(copy)
        case (dict(), dict()) | (set(), set()):
            container.update(copy)
        case _:
            raise AssertionError("a copy is of the same kind")


def like(value: object, entry: object) -> Any:
    """Return a container like another one, with the same in the place of all that is in it; or just that."""
    if not is_container(value):
        return entry
    found: Any = value.copy()
    if isinstance(value, dict):
        refill(found, {key: like(item, entry) for key, item in value.items()})
    elif isinstance(value, set):
        refill(found, {entry})
    else:
        refill(found, [like(item, entry) for item in value])
    return found
