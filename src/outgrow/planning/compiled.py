"""Compile a function on arrays to machine code, once for each machine: numba, with its cache on disk."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, compiled at its first call. It takes and returns arrays, numbers and tuples of them.

    It lets other threads run meanwhile.
    """
    return numba.njit(cache=True, nogil=True)(function)
