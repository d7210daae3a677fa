"""How long may a method think? Each runs in a process of its own that is ended when its time is up."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_FORKED = multiprocessing.get_context("fork")


def within(seconds: float, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Return what the function returns, or None if it takes longer; raises `RuntimeError` if it fails.

    The process is forked, so what is given to the function is not copied; what it returns is pickled.

    >>> within(10, max, 1, 2)
    2
    """
    ours, theirs = _FORKED.Pipe(duplex=False)
    process = _FORKED.Process(target=_answer, args=(theirs, lambda: function(*args, **kwargs)), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return None
        try:
            return cast("R", ours.recv())
        except EOFError:
            process.join()
            raise RuntimeError(
                f"{function} ended with exit status {process.exitcode}; its traceback is above"
            ) from None
    finally:
        process.kill()
        process.join()


def _answer(connection: Connection, function: Callable[[], object]) -> None:
    connection.send(function())
    connection.close()
