"""How is a model made that does not fit into memory? As ever, while parameters made before rest on the disk.

Modules make their parameters one after the other, and fill them at once; so does what makes them anew, such as
`.to(torch.bfloat16)` and `.to_empty`. Whenever parameters together take more than the budget, those made first go to a
spill file; they stay parameters that can be read and written (`runtime.resting`).
So the model is the same to the last bit, initialised with the same random numbers, and `outgrow.compile` takes it from
there: its first step brings in what it needs and leaves the rest where it is.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from weakref import ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from outgrow.runtime import arena
from outgrow.runtime.freeing import fix_mmap_threshold
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.resting import Quota, SpillFile, copied_out, extent_of, in_memory, is_exchangeable
from outgrow.runtime.tiers import offload_folder
from outgrow.units import parse_budget, parse_bytes

T = TypeVar("T")

_LEAST_BYTES = 1 << 20
"""Smaller parameters stay in memory."""


def build(
    function: Callable[[], T],
    *,
    memory_budget: float | str,
    offload_dir: str | Path | None = None,
    disk_budget: float | str | None = None,
) -> T:
    """Return what `function` returns, a model say, while its parameters take at most `memory_budget` of memory.

    Sizes are bytes or strings such as "8GiB". What does not fit rests in a file in `offload_dir` (default: the user's
    cache folder) of at most `disk_budget` bytes, and goes with the model. One parameter is always in memory while it is
    filled, however large it is.

        model = outgrow.build(lambda: Transformer(layers=96), memory_budget="2GiB")

    Raises `TypeError` for a model that is made already, `InvalidQuantity` for a size that is none, `TierFailure` if the
    folder cannot be used or the disk is full.
    """
    if isinstance(function, nn.Module) or not callable(function):
        raise TypeError(
            f"function is a {type(function).__name__}, not a function that makes a model, and what is made already is "
            "in memory. Give the function that makes it: outgrow.build(lambda: Transformer(...), memory_budget=...)"
        )
    quota = Quota(None if disk_budget is None else parse_bytes(disk_budget, what="disk budget"))
    file = SpillFile(OnDisk(offload_folder(offload_dir)))
    quota.hold(file)
    if arena.install():
        fix_mmap_threshold(_LEAST_BYTES)
    made = _Made(file, parse_budget(memory_budget))
    hook = register_module_parameter_registration_hook(made.registered)
    try:
        with _noting_conversions(made):
            return function()
    finally:
        hook.remove()


@dataclass
class _Made:
    """What was made for parameters and is in memory, the first one in front, and about what it takes."""

    file: SpillFile
    budget_bytes: int
    waiting: deque["ref[torch.UntypedStorage]"] = field(default_factory=deque["ref[torch.UntypedStorage]"])
    held_bytes: int = 0

    def registered(self, _module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        """Note a parameter before it is filled, and send those made before to the disk as need be."""
        if parameter is not None:
            self.note(parameter)

    def note(self, values: torch.Tensor) -> None:
        """Note what a parameter is made of, and send what was made before to the disk as need be."""
        if values.device.type != "cpu" or values.nbytes < _LEAST_BYTES:
            return
        last = values.untyped_storage()
        if extent_of(last) is not None or (self.waiting and self.waiting[-1]() is last):
            return
        self.waiting.append(ref(last))
        self.held_bytes += last.nbytes()
        if self.held_bytes > self.budget_bytes:
            alive = (found for one in self.waiting if (found := one()) is not None)
            self.held_bytes = sum(found.nbytes() for found in in_memory(alive))
        while self.held_bytes > self.budget_bytes and len(self.waiting) > 1:
            first = self.waiting.popleft()()
            if first is not None and first is not last:
                self.held_bytes -= _rested(first, self.file)


@contextmanager
def _noting_conversions(made: _Made) -> Iterator[None]:
    """Note what modules make anew of their parameters: all that does so goes through `torch.nn.Module._apply`."""
    converted = nn.Module._apply  # no hook is called for it

    def noted(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        def again(values: torch.Tensor) -> torch.Tensor:
            result = fn(values)
            if isinstance(values, nn.Parameter):
                made.note(result)
            return result

        return converted(self, again, recurse)

    nn.Module._apply = noted
    try:
        yield
    finally:
        nn.Module._apply = converted


def _rested(storage: torch.UntypedStorage, file: SpillFile) -> int:
    """Send a storage to the disk; returns the bytes of memory that this freed."""
    if extent_of(storage) is not None or not is_exchangeable(storage):
        return 0
    copied_out(storage, file.take(storage.nbytes()))
    return storage.nbytes()
