"""Compile a function on arrays to machine code, once for each machine: numba, with its cache on disk.

numba looks only at the file of a function to see whether its cache is still right, not at those of the functions that
it calls. So what is compiled from one state of this package lies in a folder of its own, below the user's cache.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import ParamSpec, TypeVar

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
        return numba.njit(cache=True, nogil=True)(function)
    finally:
        setattr(config, _WHERE, before)


@cache
def folder() -> Path:
    """The folder for what is compiled from the present state of this package."""
    digest = sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return cache_folder("compiled") / digest.hexdigest()[:16]
