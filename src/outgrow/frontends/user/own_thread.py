"""What do other threads do while a step is traced? What they always do: it is no part of the step."""

from collections.abc import Callable
from threading import get_ident
from typing import Any


def in_own_thread(ours: Callable[..., Any], others: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, which a class binds to its instances, that is `ours` where this thread calls it."""
    own = get_ident()

    def called(*args: Any, **kwargs: Any) -> Any:
        return (ours if get_ident() == own else others)(*args, **kwargs)

    return called
