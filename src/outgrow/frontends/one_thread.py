"""Which thread may run a step of a model? One at a time: weights change places in memory while a step runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident

from torch import nn

_guard = Lock()
_running: dict[int, int] = {}
"""The threads that run steps, by the identity of the models."""


@contextmanager
def one_thread(models: Sequence[nn.Module]) -> Iterator[None]:
    """Let this thread alone run steps of these models; a step may call another one of the same model.

    Raises `RuntimeError` if another thread runs one.
    """
    own = get_ident()
    with _guard:
        if any(_running.get(id(model), own) != own for model in models):
            raise RuntimeError(
                "Another thread runs a step of the same model, whose weights change places in memory meanwhile. Let "
                "one thread call it at a time: with a lock around the call, for one."
            )
        fresh = [id(model) for model in models if id(model) not in _running]
        _running.update(dict.fromkeys(fresh, own))
    try:
        yield
    finally:
        with _guard:
            for model in fresh:
                del _running[model]
