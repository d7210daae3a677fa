"""How is a model made that does not fit into memory? As ever, while parameters made before rest in the next tier.

Modules make their parameters one after the other, and fill them at once; so does what makes them anew, such as
`.to(torch.bfloat16)`, `.cuda()` and `.to_empty`. Whenever parameters on one device together take more than the budget,
those made first go to its next tier, a spill file or for a GPU locked memory of the host; they stay parameters that can
be read and written (`runtime.resting`).
So the model is the same to the last bit, initialised with the same random numbers, and `outgrow.compile` takes it from
there: its first step brings in what it needs and leaves the rest where it is.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch
from weakref import ref

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from outgrow.frontends.user.training.devices import CPU
from outgrow.runtime import arena
from outgrow.runtime.device import Cuda
from outgrow.runtime.freeing import fix_mmap_threshold
from outgrow.runtime.medium import InHost, OnDisk
from outgrow.runtime.resting import Quota, SpillFile, copied_out, extent_of, in_memory, is_exchangeable
from outgrow.runtime.tiers import offload_folder
from outgrow.units import parse_budget, parse_bytes

T = TypeVar("T")

_HOMES = "cpu", "cuda"
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
    cache folder) of at most `disk_budget` bytes, and goes with the model. Of parameters on a GPU, which may have as
    much of that, it rests in locked memory of the host. One parameter is always in memory while it is filled, however
    large it is.

        model = outgrow.build(lambda: Transformer(layers=96), memory_budget="2GiB")

    Raises `TypeError` for a model that is made already, `InvalidQuantity` for a size that is none, `TierFailure` if the
    folder cannot be used, the disk is full, or memory of the host is too short or cannot be locked.
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
    made = _Made(parse_budget(memory_budget), {CPU: _Room(file)})
    with register_module_parameter_registration_hook(made.registered), _noting_conversions(made):
        return function()


@dataclass
class _Room:
    """What was made for parameters and is in memory of a device, the first one in front, and about what it takes."""

    file: SpillFile
    waiting: deque["ref[torch.UntypedStorage]"] = field(default_factory=deque["ref[torch.UntypedStorage]"])
    held_bytes: int = 0

    @staticmethod
    def of_gpu(home: torch.device) -> "_Room":
        """Return that of a GPU, of which nothing has been made yet."""
        device = Cuda(home)
        return _Room(SpillFile(InHost(device.torch_device, device.streams, device.lock)))

    def note(self, last: torch.UntypedStorage, budget_bytes: int) -> None:
        """Note what was made last, and send what was made before to the next tier as need be."""
        if extent_of(last) is not None or (self.waiting and self.waiting[-1]() is last):
            return
        self.waiting.append(ref(last))
        self.held_bytes += last.nbytes()
        if self.held_bytes > budget_bytes:
            alive = (found for one in self.waiting if (found := one()) is not None)
            self.held_bytes = sum(found.nbytes() for found in in_memory(alive))
        while self.held_bytes > budget_bytes and len(self.waiting) > 1:
            first = self.waiting.popleft()()
            if first is not None and first is not last:
                self.held_bytes -= _rested(first, self.file)


@dataclass
class _Made:
    """What was made for parameters, by device, of which each may have the budget."""

    budget_bytes: int
    rooms: dict[torch.device, _Room]

    def registered(self, _module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        """Note a parameter before it is filled, and send those made before to the next tier as need be."""
        if parameter is not None:
            self.note(parameter)

    def note(self, values: torch.Tensor) -> None:
        """Note what a parameter is made of, and send what was made before to the next tier as need be."""
        home = values.device
        if home.type not in _HOMES or values.nbytes < _LEAST_BYTES or isinstance(values, FakeTensor):
            return
        if home not in self.rooms:
            self.rooms[home] = _Room.of_gpu(home)
        self.rooms[home].note(values.untyped_storage(), self.budget_bytes)


def _noting_conversions(made: _Made) -> AbstractContextManager[object]:
    """Return a context that notes what modules make anew of parameters: all that does so goes through `_apply`."""
    converted = nn.Module._apply  # no hook is called for it

    def noted(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        def again(values: torch.Tensor) -> torch.Tensor:
            result = fn(values)
            if isinstance(values, nn.Parameter):
                made.note(result)
            return result

        return converted(self, again, recurse)

    return patch.object(nn.Module, "_apply", noted)


def _rested(storage: torch.UntypedStorage, file: SpillFile) -> int:
    """Send a storage to the next tier; returns the bytes of memory that this freed."""
    if extent_of(storage) is not None or not is_exchangeable(storage):
        return 0
    copied_out(storage, file.take(storage.nbytes()))
    return storage.nbytes()
