"""What does a step take out of what is outside, so that it is gone? Nothing: it would be the same in every call.

An iterator that the step names, or a queue whose `get` it names, is refused before the step is traced, since nobody can
put back what it has given. A container of which the step takes something, `batches.pop(0)`, has it again, and the step
is refused as well. What it puts into containers among its arguments is told.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import IOBase
from multiprocessing.queues import Queue as ProcessQueue
from queue import Queue, SimpleQueue

import torch.utils._pytree as pytree

from outgrow.errors import Uncapturable
from outgrow.frontends.user.filling import is_container, refill
from outgrow.frontends.user.reach.locations import Location
from outgrow.remarks import remark

_REMEDY = (
    "which the captured step would not do again: every call would get what the first one got. Take it outside of the "
    "step, and pass it as an argument"
)
_NOT_SEEN = (
    "The step puts something into a dict or a list among its arguments. The caller does not see it there: return it."
)
_QUEUES = (Queue, SimpleQueue, ProcessQueue)
_FEW = 64
_GETTERS = ("get", "get_nowait")
"""Methods of queues between threads and processes that take something out."""


def is_iterator(value: object) -> bool:
    """Whether a value gives away what comes next; files, to which a step may write, do not count."""
    return hasattr(type(value), "__next__") and not isinstance(value, IOBase)


def _gives(value: object) -> bool:
    """Whether something is taken from a value, or from one of a few in a list."""
    few = value[:_FEW] if isinstance(value, list | tuple) else ()
    return is_iterator(value) or any(map(is_iterator, few))


def _is_of_a_queue(location: Location) -> bool:
    return location.path[-1] in _GETTERS and isinstance(location.owner(), _QUEUES)


@contextmanager
def arguments_in_place(arguments: object) -> Iterator[None]:
    """Raise `Uncapturable` if the block takes something out of a list among the arguments of a step, or moves it."""
    before = [(item, [*item]) for item in _lists(arguments)]
    yield
    if any(_is_rearranged(now, then) for now, then in before):
        raise Uncapturable(
            "the step takes something out of a list among its arguments, or moves it there, which the captured step "
            "would not do in the list of the caller. Do that outside of the step, and pass what it works on"
        )


def _lists(value: object) -> Iterator[list[object] | deque[object]]:
    if isinstance(value, list | deque):
        yield value
    if isinstance(value, list | deque | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _lists(item)


def _is_rearranged(now: Sequence[object], before: Sequence[object]) -> bool:
    """Whether a list is shorter than before, or what was in it is at another place; what is new does not count."""
    known = set(map(id, before))
    pairs = zip(now, before, strict=False)
    return len(now) < len(before) or any(item is not then and id(item) in known for item, then in pairs)


def warn_of_given(before: object, after: object) -> None:
    """Say so if the step has put something into containers among its arguments, which are not the caller's own."""
    given, structure = pytree.tree_flatten(before)
    there, now = pytree.tree_flatten(after)
    old, new = [*map(id, given)], [*map(id, there)]
    has_more = len(new) > len(old) or not set(new) <= set(old)
    has_exchanged = now == structure and new != old
    if has_more or has_exchanged:
        remark(_NOT_SEEN)


@contextmanager
def nothing_taken(
    locations: Iterable[Location], signed: frozenset[int], arguments: Iterable[object] = ()
) -> Iterator[None]:
    """Raise `Uncapturable` if a location is an iterator, or of a queue, or the block takes out of a container.

    Arguments that are iterators count, too. Containers of modules and optimizers whose identities are `signed`
    are left to `frontends.user.left.attributes`.
    """
    there = [(location, location.read()) for location in locations]
    giving = [f"`{location.name}`" for location, value in there if _gives(value) or _is_of_a_queue(location)]
    giving += ["an argument" for value in arguments if is_iterator(value)]
    if giving:
        raise Uncapturable(f"the step takes from {giving[0]}, an iterator or a queue, {_REMEDY}")
    containers = {id(value): (location, value) for location, value in there if is_container(value)}
    copies = [(location, x, x.copy()) for location, x in containers.values() if not location.is_signed(signed)]
    taken: list[str] = []
    try:
        yield
    finally:
        for location, container, copy in copies:
            if len(container) < len(copy):
                taken.append(location.name)
                refill(container, copy)
    if taken:
        raise Uncapturable(f"the step takes something out of `{taken[0]}`, {_REMEDY}")
