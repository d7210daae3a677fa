"""Compile a function on arrays to machine code, once for each machine: numba, with its cache on disk.

numba looks only at the file of a function to see whether its cache is still right, not at those of the functions that
it calls. So what is compiled from one state of this package lies in a folder of its own, below the user's cache.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryFile
from threading import Event
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core import config

from outgrow.files import cache_folder
from outgrow.remarks import remark

P = ParamSpec("P")
R = TypeVar("R")

_WHERE = "CACHE_DIR"
"""numba's setting, `NUMBA_CACHE_DIR` in the environment."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, compiled at its first call. It takes and returns arrays, numbers and tuples of them.

    It lets other threads run meanwhile. Where nothing can be kept, each process compiles it.
    """
    before: str = getattr(config, _WHERE)
    kept = Path(before or folder())
    if not _can_keep(kept):  # numba would keep it beside the source, or refuse
        return numba.njit(nogil=True)(function)
    setattr(config, _WHERE, str(kept))
    try:
        return _forgiving(numba.njit(cache=True, nogil=True)(function))
    finally:
        setattr(config, _WHERE, before)


@cache
def _can_keep(place: Path) -> bool:
    """Whether files can be made in a folder, which is made if it is not there; a remark if not."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=place).close()
    except OSError as error:
        remark(
            f"No file can be made in {place} ({error.strerror}), so each process compiles the planners anew, which "
            "takes half a minute. Let the environment variable XDG_CACHE_HOME name a folder that can be written."
        )
        return False
    return True


def _forgiving(dispatcher: Any) -> Any:
    """Let a compiled function be compiled anew where its cache cannot be read: a power cut leaves such files.

    A full disk keeps none.
    """
    kept = dispatcher._cache  # noqa: SLF001 - numba has no other name for it
    load, save = kept.load_overload, kept.save_overload

    def loaded(*about: object) -> object:
        try:
            return load(*about)
        except (EOFError, OSError, UnpicklingError, ValueError):
            with suppress(OSError):
                kept.flush()
            return None

    def saved(*about: object) -> None:
        with suppress(EOFError, OSError, UnpicklingError, ValueError):  # it reads what is there before it writes
            save(*about)

    kept.load_overload, kept.save_overload = loaded, saved
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
