"""Which objects of some kind does the process hold? The garbage collector knows, except what is frozen.

It tells of all objects, and among them may be a tuple that another thread is in the middle of building. CPython refuses
to finish a tuple that anybody else has a hold of. So all objects are asked for, looked through and dropped within one
call of C, in which no other thread runs.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, groupby, starmap
from typing import Any
from weakref import WeakSet

_types: WeakSet[type] = WeakSet()
"""Those of which there were objects: of others it takes longer to find that they are of no kind that is asked for."""


def living(*kinds: type) -> list[Any]:
    """Return the objects of these kinds; it takes some tens of milliseconds."""
    with _no_collection():
        if not _types:
            _types.update(set(map(type, _all_objects())))
        others = {kind: () for kind in _types if not issubclass(kind, kinds)}
        found = list(chain.from_iterable(starmap(others.get, groupby(_all_objects(), type))))
        _types.update(set(map(type, found)))
        wanted = [item for item in found if issubclass(type(item), kinds) and item is not found]
        found.clear()  # it may hold itself
        return wanted


def _all_objects() -> Iterator[Any]:
    """Return an iterator that asks for all objects when it is asked for the first."""
    return chain.from_iterable(map(gc.get_objects, (None,)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Within it the collector runs no Python, in which other threads get their turn."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
