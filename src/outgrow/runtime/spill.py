"""What does a step move through the next tier? Two kinds of extents of one file or pool, by a link of its own.

    scratch   one extent for all that is born and dies in a step; a program says where in it each storage lies
    others    one extent for each storage that outlives the step and leaves the device (`runtime.resting`)

What has no room there goes on to the tier `below`, which is another spill. Space is reserved when a plan is made,
so that a full disk is found then and not in the middle of a step.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter

import torch

from outgrow.analysis.sinking import ROOM_BYTES
from outgrow.errors import TierFailure
from outgrow.runtime.freeing import trim
from outgrow.runtime.medium import AnyLink, Medium
from outgrow.runtime.program import Program
from outgrow.runtime.resting import Extent, Quota, SpillFile, bring_home, copied_out, extent_of, forget
from outgrow.units import round_up


@dataclass
class Spill:
    """What one `Step` has of the next tier, and the link to it; nothing of it is taken until a plan needs it."""

    medium: Medium
    quota: Quota = field(default_factory=Quota)
    file: SpillFile | None = None
    link: AnyLink | None = None
    scratch: Extent | None = None
    below: "Spill | None" = None

    @property
    def scratch_offset(self) -> int:
        """Where in the file the scratch begins."""
        assert self.scratch is not None, "scratch was reserved for the program"
        return self.scratch.offset

    def adopt(self, tensors: Iterable[torch.Tensor]) -> None:
        """Go on with the file in which some tensors rest already, if it is in the folder and there is none yet."""
        if self.file is not None:
            return
        for tensor in tensors:
            extent = extent_of(tensor.untyped_storage())
            if extent is not None and extent.file.medium == self.medium and not extent.file.tier.is_inherited:
                self.file = extent.file
                self.quota.hold(self.file)
                return

    def reserve(self, scratch_bytes: int, lasting_bytes: int) -> None:
        """Make room for scratch, and for `lasting_bytes` more of storages that outlive the step; have a working link.

        Raises `TierFailure` if the budget of the tier, or what there is of it, is too small, and in a process that was
        forked from the one whose tier it is.
        """
        if self.file is not None and self.file.tier.is_inherited:
            raise TierFailure(
                f"What this step keeps in {self.file.tier.place} belongs to the process from which this one was forked"
                ". Compile the step in this process, or start processes by spawn."
            )
        if self.link is not None and self.link.failure is not None:
            self.link.close()
            self.link = None
        if self.file is None:
            self.file = SpillFile(self.medium)
            self.quota.hold(self.file)
        taken = 0 if self.scratch is None else self.scratch.size_bytes
        if taken < scratch_bytes:
            self._take_scratch(self.file, scratch_bytes)
        try:
            self.file.make_room(lasting_bytes)
        except TierFailure:
            if taken <= scratch_bytes:
                raise
            self._take_scratch(self.file, scratch_bytes)  # another program had wanted more scratch
            self.file.make_room(lasting_bytes)
        self.link = self.link or self.medium.link(self.file.tier)

    def reserve_for(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make room for what a program moves through this tier. Raises `TierFailure` as `reserve` does."""
        self.adopt(tensors.values())
        self.reserve(program.scratch_bytes, self.missing_bytes(program, tensors, program.lasting - program.sunk))

    def missing_bytes(self, program: Program, tensors: Mapping[str, torch.Tensor], lasting: Collection[str]) -> int:
        """Return the bytes that lasting storages of a program will take here beside what they have here."""
        resting = {name for name in program.stowed & tensors.keys() if self.held(tensors[name].untyped_storage())}
        return sum(round_up(program.sizes[name], ROOM_BYTES) for name in lasting if name not in resting)

    def _take_scratch(self, file: SpillFile, size_bytes: int) -> None:
        self.scratch = None
        if self.link is not None and file.tier.seam_bytes:  # the link knows bytes that may be given back
            self.link.close()
            self.link = None
        self.scratch = file.take(size_bytes) if size_bytes else None

    @contextmanager
    def serving(self, *, is_timed: bool) -> Iterator[None]:
        """Copies are about to be submitted."""
        with ExitStack() as stack:
            for link in self._links():
                stack.enter_context(link.serving(is_timed=is_timed))
            yield

    def settle(self) -> None:
        """Wait until no copy is in flight, whatever came of them."""
        for link in self._links():
            link.settle()

    def _links(self) -> list[AnyLink]:
        spills = (self, self.below)
        return [spill.link for spill in spills if spill is not None and spill.link is not None]

    def arrange(
        self,
        storages: Mapping[str, torch.UntypedStorage],
        stowed: Collection[str],
        lasting: Mapping[str, int],
        sunk: Collection[str] = (),
    ) -> dict[str, Extent]:
        """Bring storages to where a step wants them: `stowed` ones to this file, or below, the others to memory.

        Returns the extents of the stowed ones, and new ones for the others that are `lasting` (sizes by name), which
        may leave during the step. Raises `TierFailure` if the disk fails, or has no room for all of them, and if a
        device would not reach one where it is to rest: in the middle of a step it would be too late.
        """
        found, leaves_holes = self.sent({name: storages[name] for name in storages if name in stowed}, sunk)
        if leaves_holes:
            trim()
        bring_home(storage for name, storage in storages.items() if name not in found)
        left = {name: size for name, size in lasting.items() if name not in found}
        taken = {name: self._file_of(name, sunk).take(size) for name, size in left.items()}
        for extent in taken.values():
            extent.file.tier.require_reached(extent.offset, extent.size_bytes)
        return found | taken

    def _file_of(self, name: str, sunk: Collection[str]) -> SpillFile:
        spill = self.below if name in sunk else self
        assert spill is not None, "what sinks has a tier below"
        assert spill.file is not None, "the file was made when room was reserved"
        return spill.file

    def sent(
        self, storages: Mapping[str, torch.UntypedStorage], sunk: Collection[str] = ()
    ) -> tuple[dict[str, Extent], bool]:
        """Bring storages to this file, or below; returns their extents, and whether one of them was elsewhere."""
        found: dict[str, Extent] = {}
        was_elsewhere = False
        for name, storage in storages.items():
            file, extent = self._file_of(name, sunk), extent_of(storage)
            if extent is None or extent.file is not file:
                extent = file.take(storage.nbytes())
                copied_out(storage, extent)
                was_elsewhere = True
            forget(storage)
            found[name] = extent
        return found, was_elsewhere

    def gather(self, storages: Iterable[torch.UntypedStorage]) -> None:
        """Move those that rest here towards the beginning, so that what is free is in fewer pieces.

        A process that was forked from the one whose tier it is moves nothing.
        """
        file = self.file
        if file is None or file.tier.is_inherited:
            return
        held = [(extent.offset, item) for item in storages if (extent := self.held(item)) is not None]
        for offset, storage in sorted(held, key=itemgetter(0), reverse=True):
            extent = file.take_free(storage.nbytes())
            if extent is not None and extent.offset < offset:
                copied_out(storage, extent)

    def held(self, storage: torch.UntypedStorage) -> Extent | None:
        """Return where in this file a storage rests; None if it does not."""
        extent = extent_of(storage)
        return extent if extent is not None and extent.file is self.file else None

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage rests in this file, or below."""
        return self.held(storage) is not None or (self.below is not None and self.below.has(storage))

    def close(self) -> None:
        """Stop the link and give the space back: at once, or when what rests there is no longer needed."""
        if self.below is not None:
            self.below.close()
        if self.link is not None:
            self.link.close()
        self.link = self.file = self.scratch = None
