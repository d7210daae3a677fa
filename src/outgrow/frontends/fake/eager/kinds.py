"""Of which type is a number? Of that which it has in eager mode, to whoever asks by `isinstance`.

While a step is traced, a number of a tensor, of an optimizer or of what it gathers is a symbol, of a type of torch's.
Torch has to know its symbols, and Python's own library to refuse what it cannot take. Everybody else asks whether
something is a number, to go another way with tensors or words: meters and loggers do, in the code of the user's or of
packages.

`type(number)` tells the truth all the same, since nobody can exchange what that returns.
"""

import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from unittest.mock import patch

from torch import SymBool, SymFloat, SymInt

from outgrow.frontends.user.lines import in_package, is_of_a_library

_KINDS = {SymInt: int, SymFloat: float, SymBool: bool}
_ABSTRACT = ABCMeta.__instancecheck__.__code__
"""Asks on behalf of whoever names an abstract class, such as `numbers.Number`."""


@contextmanager
def kinds_of_eager() -> Iterator[None]:
    """Let symbols pass for the numbers for which they stand."""
    with ExitStack() as stack:
        for kind, number in _KINDS.items():
            stack.enter_context(patch.object(kind, "__getattribute__", _passing_for(number)))
        yield


def _passing_for(number: type) -> Callable[[object, str], object]:
    """Return what looks up the attributes of a symbol; its `__class__` is what `isinstance` looks at as well."""

    def attribute(symbol: object, name: str) -> object:
        passes = name == "__class__" and not _may_know(sys._getframe(1))
        return number if passes else object.__getattribute__(symbol, name)

    return attribute


def _may_know(frame: FrameType) -> bool:
    """Whether torch, outgrow or Python's own library asks."""
    asking = frame.f_back if frame.f_code is _ABSTRACT else frame
    file = "" if asking is None else asking.f_code.co_filename
    return is_of_a_library(file) and in_package(file) is None
