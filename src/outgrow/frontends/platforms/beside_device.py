"""Where does what leaves a device go? To memory of the host, and where that is limited on to a file.

The program says which tensors go where (`Program.stowed`, `sunk`). When another plan wants them elsewhere, moves that
make room come first. Where memory of the host is limited: what is to be on the device comes home, what sinks goes to
the file, then the others go to memory of the host. Where it is not, these go first, and what is to be on the device
comes home last.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from outgrow.analysis.sinking import ROOM_BYTES
from outgrow.errors import TierFailure
from outgrow.frontends.preparing.settings import Settings
from outgrow.ir.machine import Machine
from outgrow.runtime.device import BesideHost
from outgrow.runtime.links import measure_link
from outgrow.runtime.medium import BelowHost, InHost
from outgrow.runtime.program import Program
from outgrow.runtime.resting import Quota, bring_home, extent_of
from outgrow.runtime.spill import Spill
from outgrow.runtime.staged import BUFFERS_BYTES
from outgrow.units import round_up

_PIECES_BYTES = 8 << 20
"""About how much more host memory is taken than is asked for, since it is in pieces."""


def least_host_bytes() -> int:
    """Return the bytes beyond which a file lies below memory of the host that is limited."""
    return 2 * BUFFERS_BYTES


def has_file(settings: Settings) -> bool:
    """Whether a file lies below memory of the host."""
    return settings.host_bytes is not None and settings.host_bytes > least_host_bytes()


class BesideDevice:
    """The tiers of one step on a device. Raises `TierFailure` if memory of the host is limited and there is no folder.

    `spill` is memory of the host; where that is limited, a file lies below it, whose buffers are host memory too.
    """

    def __init__(self, device: BesideHost, settings: Settings) -> None:
        self._device, self._folder, host_bytes = device, settings.folder, settings.host_bytes
        self.spill = Spill(InHost(device.torch_device, device.streams, device.lock), Quota(host_bytes))
        if host_bytes is not None and has_file(settings):
            settings.require_disk()
            medium = BelowHost(settings.folder, device.torch_device, device.streams, device.more_streams, device.lock)
            self.spill.quota.limit_bytes, self.spill.quota.buffers_bytes = host_bytes - BUFFERS_BYTES, BUFFERS_BYTES
            self.spill.below = Spill(medium, settings.disk)

    def known_to(self, machine: Machine) -> Machine:
        """Return a machine that knows of the file, if there is one, and what its link does."""
        limit = self.spill.quota.limit_bytes
        if self.spill.below is None or limit is None:
            return machine
        room, link = limit - _PIECES_BYTES, measure_link(self._folder)
        return replace(machine, tier_bytes=room, below=link, reads_below=self._device.reads_pages)

    def rest(self, tensors: Sequence[Tensor]) -> None:
        """Let tensors rest in the next tier until a plan says where they belong. Where that has no room, they stay."""
        awake = [storage for tensor in tensors if extent_of(storage := tensor.untyped_storage()) is None]
        rooms = _rooms(awake)
        spill = self.spill
        if spill.below is not None and spill.quota.limit_bytes is not None and rooms > spill.quota.limit_bytes:
            spill = spill.below if self._device.reads_pages else spill
        with suppress(TierFailure):
            spill.adopt(tensors)
            spill.reserve(0, rooms)
            spill.sent(_numbered(awake))

    def ready(
        self, program: Program, tensors: Mapping[str, Tensor], make_way: Callable[[int], None]
    ) -> tuple[Spill | None, bool]:
        """Take the room that a program needs, and bring tensors to where it wants them.

        `make_way` is called before anything comes home to the device, with its bytes.

        Returns the next tier, None if it moves nothing there, and whether something left the device. Raises
        `TierFailure`.
        """
        storages = {name: tensor.untyped_storage() for name, tensor in tensors.items()}
        if self.spill.quota.limit_bytes is not None:
            _come_home(program, storages, make_way)
        has_sunk = bool(program.sunk) and self._sink(program, tensors)
        if not program.moves:
            _come_home(program, storages, make_way)
            return None, has_sunk
        self._reserve(program, tensors, storages.values())
        here = program.stowed - program.sunk
        _, was_here = self.spill.sent({name: item for name, item in storages.items() if name in here})
        _come_home(program, storages, make_way)
        return self.spill, has_sunk or was_here

    def _reserve(
        self, program: Program, tensors: Mapping[str, Tensor], storages: Collection[torch.UntypedStorage]
    ) -> None:
        """Take the room of a program in the next tier. Where what is free is in pieces, what rests there makes way."""
        for make_way in (self.spill.gather, partial(self._clear, program)):
            try:
                self.spill.reserve_for(program, tensors)
            except TierFailure:
                make_way(storages)
            else:
                return
        self.spill.reserve_for(program, tensors)

    def _sink(self, program: Program, tensors: Mapping[str, Tensor]) -> bool:
        """Bring to the file what is to rest there; return whether any of it was elsewhere."""
        below = self.spill.below
        assert below is not None, "what sinks has a tier below"
        below.adopt(tensors.values())
        sinking = program.stowed & program.sunk
        deep = {name: tensor.untyped_storage() for name, tensor in tensors.items() if name in sinking}
        missing = below.missing_bytes(program, tensors, program.lasting & program.sunk)
        below.reserve(program.sunk_bytes, missing)
        _, was_elsewhere = below.sent(deep)
        return was_elsewhere

    def _clear(self, program: Program, storages: Iterable[torch.UntypedStorage]) -> None:
        """Let what rests in memory of the host rest below it for now, if it may, since free room there is in pieces."""
        below, resting = self.spill.below, [item for item in storages if self.spill.held(item)]
        if below is not None and resting and self._device.reads_pages:
            below.reserve(program.sunk_bytes, _rooms(resting))
            below.sent(_numbered(resting))


def _come_home(program: Program, storages: Mapping[str, torch.UntypedStorage], make_way: Callable[[int], None]) -> None:
    """Bring to the device what rests elsewhere and is not stowed in this program."""
    coming = [item for name, item in storages.items() if name not in program.stowed and extent_of(item)]
    if coming:
        make_way(sum(item.nbytes() for item in coming))
    bring_home(coming)


def _rooms(storages: Iterable[torch.UntypedStorage]) -> int:
    return sum(round_up(storage.nbytes(), ROOM_BYTES) for storage in storages)


def _numbered(storages: Iterable[torch.UntypedStorage]) -> dict[str, torch.UntypedStorage]:
    """Return storages under arbitrary names."""
    return {str(number): storage for number, storage in enumerate(storages)}
