"""Has a function done its work when it returns? Not an `async` one, nor one that yields, however it is wrapped.

What these return would do the work later: a coroutine or a generator.
"""

from inspect import isasyncgen, iscoroutine, isgenerator

from outgrow.errors import Uncapturable


def is_unfinished(returned: object) -> bool:
    """Whether this is the work of the function that returned it; a coroutine is closed, as nobody will wait for it."""
    if iscoroutine(returned):
        returned.close()
    return iscoroutine(returned) or isgenerator(returned) or isasyncgen(returned)


def finished(returned: object) -> object:
    """Return what a step has returned. Raises `Uncapturable` if its work has yet to be done."""
    if is_unfinished(returned):
        raise Uncapturable("the step is a generator or a coroutine; give a function that returns once the step has run")
    return returned
