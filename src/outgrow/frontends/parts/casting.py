"""In which types does autocast compute? How it is set now, and how to have it so again.

A backward pass within an autocast block, as that of a loop which optimizes by hand, may multiply in other types than
one behind it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Casting:
    """The kinds of devices on which autocast is on, each with the type that it casts to, and whether it keeps casts."""

    types: tuple[tuple[str, torch.dtype], ...] = ()
    keeps: bool = True

    @staticmethod
    def now() -> "Casting":
        """Return how autocast is set."""
        types = [(kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind)]
        return Casting(tuple(types), torch.is_autocast_cache_enabled()) if types else NO_CASTING

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within this context autocast is set like this."""
        types = dict(self.types)
        with ExitStack() as stack:
            for kind in _KINDS:
                if (is_on := kind in types) or torch.is_autocast_enabled(kind):
                    how = {"enabled": is_on, "cache_enabled": self.keeps}
                    stack.enter_context(torch.autocast(kind, types.get(kind), **how))
            yield


NO_CASTING = Casting()
