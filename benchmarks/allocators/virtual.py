"""What would an allocator that maps physical chunks into virtual ranges hold? NNabla's, in simulation.

Hayakawa and Narihira 2020, "Out-of-core training for extremely large-scale neural networks with adaptive window-based
scheduling", https://arxiv.org/abs/2010.14109, section on virtual addressing.

    round     a request is rounded up to whole chunks, 20 MB (or 2 MB, where memory is short)
    free      a freed range stays mapped, in a cache by size
    exact     a cached range of the same size is used as it is
    grow      else the largest smaller one is grown, by loose chunks, then by those of the smallest cached range that
              has enough, then by those of the largest cached ranges, then by new ones
    shrink    else (all cached ranges are larger) the smallest is stripped, and the chunks it has too many become loose
    create    with no cached range at all, loose chunks and then new ones are mapped

Chunks serve any range, so nothing is lost between ranges: what is lost is the rest of the last chunk of each. The price
is the chunks that are mapped anew, counted here. Departure: the device finishes each op before the next begins, so a
range that is given up is unmapped at once.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from allocators.requests import comings_and_goings

from outgrow.planning.addresses.blocks import Block, live_peak_bytes

CHUNK_BYTES = 20 << 20
SMALL_CHUNK_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Mapped:
    """Bytes of the chunks that were created, chunks mapped, and the most bytes that were asked for at once."""

    reserved_bytes: int
    chunks_mapped: int
    live_bytes: int

    @property
    def fragmentation(self) -> float:
        """The share by which more is reserved than was asked for at once."""
        return self.reserved_bytes / self.live_bytes - 1 if self.live_bytes else 0.0


def virtual_addresses(blocks: Sequence[Block], chunk_bytes: int = CHUNK_BYTES) -> Mapped:
    """Return what the simulated allocator reserves for blocks that come and go.

    >>> from outgrow.planning.addresses.blocks import Part
    >>> virtual_addresses([Block("a", (Part(0, 30, 0, 1),)), Block("b", (Part(0, 45, 1, 2),))], chunk_bytes=20)
    Mapped(reserved_bytes=60, chunks_mapped=3, live_bytes=45)
    """
    chunks = _Chunks()
    held: dict[int, int] = {}
    for number, size in comings_and_goings(blocks):
        if size is None:
            insort(chunks.cached, held.pop(number))
        else:
            held[number] = -(-size // chunk_bytes)
            chunks.allocate(held[number])
    return Mapped(chunks.created * chunk_bytes, chunks.mapped, live_peak_bytes(blocks))


@dataclass
class _Chunks:
    """Chunks, all alike: how many were created and mapped, how many are loose, and the sizes of the cached ranges."""

    created: int = 0
    mapped: int = 0
    loose: int = 0
    cached: list[int] = field(default_factory=list[int])

    def allocate(self, count: int) -> None:
        """Make a range of `count` chunks."""
        at = bisect_left(self.cached, count)
        if at < len(self.cached) and self.cached[at] == count:
            self.cached.pop(at)
        elif at > 0:
            self._take(count - self.cached.pop(at - 1))
        elif self.cached:
            self.loose += self.cached.pop(0) - count
            self.mapped += count
        else:
            self._take(count)

    def _take(self, missing: int) -> None:
        """Map `missing` chunks: loose ones, those of cached ranges, and new ones."""
        self.mapped += missing
        while self.loose < missing and self.cached:
            at = min(bisect_left(self.cached, missing - self.loose), len(self.cached) - 1)
            self.loose += self.cached.pop(at)
        self.created += max(0, missing - self.loose)
        self.loose = max(0, self.loose - missing)
