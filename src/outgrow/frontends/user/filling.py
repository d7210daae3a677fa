"""How are containers and arrays copied, compared and filled?

By which objects are in them: none is asked whether it is equal. Of arrays, which have none, by their bytes.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

_KINDS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
_MOST_BYTES = 1 << 20
"""Of larger arrays there are no copies."""

Container = list[object] | dict[object, object] | set[object] | deque[object]
Array: TypeAlias = NDArray[Any] | bytearray


def is_container(value: object) -> TypeGuard[Container]:
    """Whether a value is a container that can be copied and filled; types derived from one may not allow it."""
    return type(value) in _KINDS


def is_filled(value: object) -> TypeGuard[Container | Array]:
    """Whether a value is a container that can be copied and filled, or an array that is not too large for that."""
    if isinstance(value, np.ndarray):
        return value.nbytes <= _MOST_BYTES
    return len(value) <= _MOST_BYTES if isinstance(value, bytearray) else is_container(value)


def copied(value: object) -> Container | Array | None:
    """Return a copy of what can be copied and filled; None for anything else."""
    return value.copy() if is_filled(value) else None


def entries(container: Container | Array) -> Iterable[object]:
    """Return what is in a container; of an array nothing, since it has no objects."""
    if isinstance(container, np.ndarray | bytearray):
        return ()
    return container.values() if isinstance(container, dict) else container


def differ(
    container: Container | Array, copy: Container | Array, is_same: Callable[[object, object], bool] = is_
) -> bool:
    """Whether other objects are in a container, or in another order; or other bytes in an array."""
    if isinstance(container, np.ndarray) and isinstance(copy, np.ndarray):
        one, other = ((item.shape, item.dtype.str, item.tobytes()) for item in (container, copy))
        return one != other
    if isinstance(container, np.ndarray | bytearray) or isinstance(copy, np.ndarray | bytearray):
        return container != copy
    if isinstance(container, dict) and isinstance(copy, dict):
        return differ([*container, *container.values()], [*copy, *copy.values()], is_same)
    if len(container) != len(copy):
        return True
    return not all(is_same(one, other) for one, other in zip(container, copy, strict=True))


def refill(container: Any, copy: Any) -> None:
    """Let a container, or an array of the same shape, have what a copy of it has."""
    if isinstance(copy, np.ndarray):
        if container.shape == copy.shape:
            container[...] = copy
        return
    if isinstance(container, bytearray):
        container[:] = copy  # somebody may see its memory, which stays then
        return
    container.clear()
    match container, copy:
        case (list() | deque(), list() | deque()):
            container.extend(copy)
        case (dict(), dict()) | (set(), set()):
            container.update(copy)
        case _:
            raise AssertionError("a copy is of the same kind")


def change(there: Any, before: Any, after: Any) -> None:
    """Do to what is there what has made one copy of it another one.

    Of a large one nobody looks at every entry before each call, so what the step leaves alone may be another by then.
    """
    match there, before, after:
        case dict(), dict(), dict():
            stays = [key for key in before if key in after]
            if stays != [key for key in after if key in before]:
                refill(there, after)
                return
            for key in before.keys() - after.keys():
                there.pop(key, None)
            for key, item in after.items():
                if key not in before or before[key] is not item:
                    there[key] = item
        case set(), set(), set():
            there.difference_update(before - after)
            there.update(after - before)
        case np.ndarray(), np.ndarray(), np.ndarray():
            if there.shape == after.shape:
                written = _written(before, after)
                there[written] = after[written]
        case _:
            known = before if len(there) == len(before) else ()
            stays = [was is item for was, item in zip(known, after, strict=False)]
            kept = [mine if same else item for mine, item, same in zip(there, after, stays, strict=False)]
            refill(there, [*kept, *[*after][len(kept) :]])


def has_still(there: Any, before: Any, after: Any, is_same: Callable[[object, object], bool]) -> bool:
    """Whether there is as much as before, and the same where `change` does something."""
    undone = there.copy()
    change(undone, after, before)
    return not differ(undone, there, is_same)


def _written(before: NDArray[Any], after: NDArray[Any]) -> Any:
    """Return where an array has other bytes than before; everywhere if it has others, or what is in it has none."""
    is_plain = type(before) is np.ndarray and not before.dtype.hasobject and before.nbytes > 0
    if not is_plain or before.shape != after.shape:
        return ...
    one, other = (np.frombuffer(item.tobytes(), np.uint8).reshape(item.size, -1) for item in (before, after))
    return (one != other).any(axis=1).reshape(after.shape)


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
