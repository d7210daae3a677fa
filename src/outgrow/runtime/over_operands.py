"""How does a result come to lie where an operand lies? The arena is told, and gives its memory to the kernel's tensor.

Some kernels make a tensor of their result's size before the result and never touch it; the arena is told of these
too, and they take no memory.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, cast

import torch

from outgrow.errors import ReplayMismatch
from outgrow.runtime import arena

Function = Callable[..., object]


def placed(function: Function, operand: int | None, idle: int) -> Function:
    """Return `function` with its first result placed over the argument at `operand` (None: anywhere).

    `function` makes `idle` tensors of the size of its first argument before its result, and never touches them.
    Without the arena a result is made elsewhere and copied over the operand: right, with more memory.
    The function returned raises `ReplayMismatch` if the kernel made its result elsewhere all the same.
    """

    def call(*arguments: object, **keywords: object) -> object:
        target = cast("torch.Tensor", arguments[operand or 0])
        size = target.untyped_storage().nbytes()
        if not arena.is_installed():
            return _copied(function(*arguments, **keywords), None if operand is None else target)
        with _unfilled() if torch.are_deterministic_algorithms_enabled() else nullcontext():
            try:
                arena.expect(size, idle, None if operand is None else target.untyped_storage().data_ptr())
                returned = function(*arguments, **keywords)
            finally:
                arena.expect(0, 0, None)
        first = _first(returned)
        if operand is not None and first is not None and first.data_ptr() != target.data_ptr():
            raise ReplayMismatch(
                f"{function} made its result elsewhere than over its argument {operand}: this version of torch runs "
                "another kernel. Run this step in eager mode."
            )
        if operand is not None and first is not None:  # the arena lent it the memory: let it hold the operand's storage
            first.set_(target.untyped_storage(), first.storage_offset(), first.shape, first.stride())
        return returned

    return call


@dataclass
class _Filling:
    """Which calls want that torch does not fill what kernels make, and whether it did before the first of them."""

    calls: set[object] = field(default_factory=set[object])
    found: bool = False
    lock: Lock = field(default_factory=Lock)


_filling = _Filling()
_deterministic: Any = torch.utils.deterministic


@contextmanager
def _unfilled() -> Iterator[None]:
    """In deterministic mode torch fills what a kernel makes; within this it does not, since an operand lies there.

    That is set for all threads, so the last one that leaves lets it be as before the first.
    """
    state, call = _filling, object()
    try:
        with state.lock:
            if not state.calls:
                state.found = _deterministic.fill_uninitialized_memory
            state.calls.add(call)
            _deterministic.fill_uninitialized_memory = False
        yield
    finally:
        with state.lock:
            if state.calls == {call}:
                _deterministic.fill_uninitialized_memory = state.found
            state.calls.discard(call)


def _first(returned: object) -> torch.Tensor | None:
    """The first result; None for a gradient that was not asked for."""
    return cast("torch.Tensor | None", returned[0] if isinstance(returned, tuple) else returned)


def _copied(returned: object, target: torch.Tensor | None) -> object:
    first = _first(returned)
    if target is None or first is None:
        return returned
    target.copy_(first)
    return (target, *returned[1:]) if isinstance(returned, tuple) else target
