"""Which modules, scalers and loggers run in a step, beside those in training? A teacher, a loss, a gradient scaler.

How they are set when a step begins is part of the graph: whether a teacher is in training, its parameters, a loss's
label smoothing; and from which level on a logger says what the step tells it. Each is compared before each call. One
that the step itself has made is gone by then.
"""

import logging
import sys
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from logging import Logger
from threading import get_ident
from types import FrameType
from typing import Any, TypeAlias
from unittest.mock import patch

from torch import nn
from torch.amp.grad_scaler import GradScaler

from outgrow.frontends.user.lines import is_of_a_library, past
from outgrow.frontends.user.reach.configuration import NUMBERS, of_helper

_OF_SCALERS = ("scale", "unscale_", "step", "update", "get_scale")
_Item: TypeAlias = nn.Module | GradScaler | Logger
Met = dict[int, Hashable]
"""What is described already, by identity, while some helpers are."""


@dataclass(frozen=True, slots=True, eq=False)
class Helper:
    """A module, a scaler or a logger, and how it was set."""

    item: "weakref.ref[_Item]"
    description: Hashable

    @staticmethod
    def of(item: _Item, met: Met) -> "Helper":
        """Return one as it is set now."""
        return Helper(weakref.ref(item), _described(item, met))

    def still_holds(self, met: Met) -> bool:
        """Whether it is set as it was, or gone."""
        item = self.item()
        return item is None or _described(item, met) == self.description


@contextmanager
def helpers_noted(trained: Collection[nn.Module], named: Iterable[nn.Module]) -> Iterator[dict[int, Helper]]:
    """Note the modules that run in the block and are none of those `trained`, and scalers and loggers that are used.

    Those that are `named`, or in them, are noted as they are when the block begins: it may change them on its way.
    """
    found: dict[int, Helper] = {}
    known, own, met = {id(module) for module in trained}, get_ident(), Met()
    modules = {id(item): item for root in named if id(root) not in known for item in root.modules()}
    before = {key: Helper.of(item, met) for key, item in modules.items() if key not in known}

    def note(item: _Item) -> None:
        if get_ident() == own and id(item) not in known and id(item) not in found:
            found[id(item)] = before.get(id(item)) or Helper.of(item, Met())

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def noted(item: _Item, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(item, Logger) or _is_asked_by_the_user(sys._getframe(1)):
                note(item)
            return method(item, *args, **kwargs)

        return noted

    methods = ((nn.Module, "_call_impl"), (Logger, "isEnabledFor"), *((GradScaler, name) for name in _OF_SCALERS))
    with ExitStack() as stack:
        for kind, name in methods:
            stack.enter_context(patch.object(kind, name, noting(getattr(kind, name))))
        yield found


def _described(item: _Item, met: Met) -> Hashable:
    if isinstance(item, nn.Module):
        return of_helper(item, met)
    if isinstance(item, Logger):
        return (item.getEffectiveLevel(), item.manager.disable, item.disabled)
    numbers = ((name, value) for name, value in vars(item).items() if type(value) in NUMBERS)
    return tuple([(name, value) for name, value in numbers if value is not None])  # what is not made yet is a tensor


def _is_asked_by_the_user(frame: FrameType | None) -> bool:
    """Whether a line of the user's asks a logger something, or tells it."""
    asking = past(frame, (logging.__file__,))
    return asking is not None and not is_of_a_library(asking.f_code.co_filename)
