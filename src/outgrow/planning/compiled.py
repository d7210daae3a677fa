"""Compile a function on arrays to machine code, once for each machine: numba, with its cache on disk.

numba looks only at the file of a function to see whether its cache is still right, not at those of the functions that
it calls. So what is compiled from one state of this package lies in a folder of its own, below the user's cache.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from threading import Event
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core import config

from outgrow.files import cache_folder

P = ParamSpec("P")
R = TypeVar("R")

_WHERE = "CACHE_DIR"
"""numba's setting, `NUMBA_CACHE_DIR` in the environment."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, compiled at its first call. It takes and returns arrays, numbers and tuples of them.

    It lets other threads run meanwhile.
    """
    before: str = getattr(config, _WHERE)
    setattr(config, _WHERE, before or str(folder()))
    try:
        return _forgiving(numba.njit(cache=True, nogil=True)(function))
    finally:
        setattr(config, _WHERE, before)


def _forgiving(dispatcher: Any) -> Any:
    """Let a compiled function be compiled anew where its cache cannot be read: a power cut leaves such files."""
    kept = dispatcher._cache  # noqa: SLF001 - numba has no other name for it
    load = kept.load_overload

    def loaded(*about: object) -> object:
        try:
            return load(*about)
        except (EOFError, OSError, UnpicklingError, ValueError):
            kept.flush()
            return None

    kept.load_overload = loaded
    return dispatcher


def off_main_thread(work: Callable[[Event], R]) -> R:
    """Return what `work` returns, on a thread of its own: Ctrl-C strikes the main one, and compiled code bears none.

    The event that it is given is clear once nobody waits for the result any more.
    """
    is_wanted = Event()
    is_wanted.set()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work, is_wanted)
        try:
            return working.result()
        finally:
            is_wanted.clear()
            del working  # an error, which it keeps, would keep the frames of its callers until garbage is collected


@cache
def folder() -> Path:
    """The folder for what is compiled from the present state of this package."""
    digest = sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return cache_folder("compiled") / digest.hexdigest()[:16]
