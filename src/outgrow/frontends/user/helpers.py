"""Which modules and scalers run in a step, beside those in training? A teacher, a loss function, a gradient scaler.

How they are set is part of the graph: whether a teacher is in training, its parameters, a loss's label smoothing. Each
is described when it first runs, and compared before each call. One that the step itself has made is gone by then.
"""

import weakref
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from threading import get_ident
from typing import Any
from unittest.mock import patch

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook

from outgrow.frontends.user.configuration import NUMBERS, of_helper

_OF_SCALERS = ("scale", "unscale_", "step", "update", "get_scale")


@dataclass(frozen=True, slots=True, eq=False)
class Helper:
    """A module or a scaler, and how it was set."""

    item: "weakref.ref[nn.Module | GradScaler]"
    description: Hashable

    def still_holds(self) -> bool:
        """Whether it is set as it was, or gone."""
        item = self.item()
        return item is None or _described(item) == self.description


@contextmanager
def helpers_noted(trained: Collection[nn.Module]) -> Iterator[dict[int, Helper]]:
    """Note the modules that run in the block and are none of those `trained`, and the scalers that are used."""
    found: dict[int, Helper] = {}
    known, own = {id(module) for module in trained}, get_ident()

    def note(item: nn.Module | GradScaler, *_args: object) -> None:
        if get_ident() == own and id(item) not in known and id(item) not in found:
            found[id(item)] = Helper(weakref.ref(item), _described(item))

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def noted(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            note(scaler)
            return method(scaler, *args, **kwargs)

        return noted

    with ExitStack() as stack:
        for name in _OF_SCALERS:
            stack.enter_context(patch.object(GradScaler, name, noting(getattr(GradScaler, name))))
        handle = register_module_forward_pre_hook(note)
        stack.callback(handle.remove)
        yield found


def _described(item: nn.Module | GradScaler) -> Hashable:
    if isinstance(item, nn.Module):
        return of_helper(item)
    numbers = ((name, value) for name, value in vars(item).items() if type(value) in NUMBERS)
    return tuple([(name, value) for name, value in numbers if value is not None])  # what is not made yet is a tensor
