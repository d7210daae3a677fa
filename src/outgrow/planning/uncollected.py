"""Search without the garbage collector: what a search makes lives until its end, so looking for garbage is in vain."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Switch cyclic garbage collection off, if it is on; objects without cycles are freed as ever."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
