"""What would an allocator that caches, splits and never compacts hold? The rules of PyTorch's, in simulation.

    round        a request is rounded up to 512 bytes
    pools        up to 1 MiB: small, in segments of 2 MiB; larger: large, in segments of 20 MiB, or, from 10 MiB on, of
                 the request rounded up to 2 MiB
    best fit     of the free blocks of the pool the smallest that is large enough, the lowest address on a tie
    split        what is left of that block stays free, if it is at least 512 bytes (small) or more than 1 MiB (large)
    merge        a freed block joins free neighbours in its segment; segments are not given back

The storages come and go as the graph says; nothing is planned. What is reserved from the device at the end is the sum
of all segments: the most that was ever reserved, since the device is never asked to take any back.

The rules are those of c10/cuda/CUDACachingAllocator.cpp in PyTorch, https://github.com/pytorch/pytorch, without
streams, garbage collection and expandable segments. Left out: under a limit, PyTorch frees whole cached segments
and tries again, so it may reserve less than this before it gives up.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from allocators.requests import comings_and_goings

from outgrow.planning.addresses.blocks import Block, live_peak_bytes
from outgrow.units import MIB

_GRANULE = 512
_SMALL_REQUEST = MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT_FROM = 10 * MIB
_OWN_SEGMENT_GRANULE = 2 * MIB


@dataclass(frozen=True, slots=True)
class Reserved:
    """Bytes taken from the device, and the most bytes that were asked for at once."""

    reserved_bytes: int
    live_bytes: int

    @property
    def fragmentation(self) -> float:
        """The share by which more is reserved than was asked for at once."""
        return self.reserved_bytes / self.live_bytes - 1 if self.live_bytes else 0.0


def caching_allocator(blocks: Sequence[Block]) -> Reserved:
    """Return what the simulated allocator reserves for blocks that come and go.

    >>> from outgrow.planning.addresses.blocks import Part
    >>> caching_allocator([Block("a", (Part(0, 3 << 20, 0, 1),)), Block("b", (Part(0, 100, 1, 2),))])
    Reserved(reserved_bytes=23068672, live_bytes=3145728)
    """
    small, large = _Pool(_GRANULE), _Pool(_SMALL_REQUEST + 1)
    held: dict[int, tuple[_Pool, int]] = {}
    for number, size in comings_and_goings(blocks):
        if size is None:
            pool, address = held.pop(number)
            pool.free(address)
        else:
            rounded = -(-size // _GRANULE) * _GRANULE
            pool = small if rounded <= _SMALL_REQUEST else large
            held[number] = (pool, pool.allocate(rounded, _segment_bytes(rounded)))
    return Reserved(small.reserved + large.reserved, live_peak_bytes(blocks))


def _segment_bytes(size: int) -> int:
    if size <= _SMALL_REQUEST:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT_FROM:
        return _LARGE_SEGMENT
    return -(-size // _OWN_SEGMENT_GRANULE) * _OWN_SEGMENT_GRANULE


@dataclass
class _Pool:
    """Segments one behind the other, cut into blocks that are taken and holes that are free.

    `taken` gives the end of each block by its address, `ends` and `begins` each hole by either side, and `holes` all
    of them by size, then address. No block and no hole reaches across one of `seams`, where a segment begins.
    """

    least_rest: int
    reserved: int = 0
    taken: dict[int, int] = field(default_factory=dict[int, int])
    holes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    ends: dict[int, int] = field(default_factory=dict[int, int])
    begins: dict[int, int] = field(default_factory=dict[int, int])
    seams: set[int] = field(default_factory=set[int])

    def allocate(self, size: int, segment_bytes: int) -> int:
        """Take the smallest hole that is large enough, or a new segment; return the address."""
        at = bisect_left(self.holes, (size, -1))
        if at < len(self.holes):
            _, address = self.holes[at]
            end = self._fill(address)
        else:
            self.seams.add(self.reserved)
            address, end = self.reserved, self.reserved + segment_bytes
            self.reserved = end
        if end - address - size >= self.least_rest:
            self._open(address + size, end)
            end = address + size
        self.taken[address] = end
        return address

    def free(self, address: int) -> None:
        """Free the block at an address, and join it with the holes beside it in the same segment."""
        begin, end = address, self.taken.pop(address)
        if end in self.ends and end not in self.seams:
            end = self._fill(end)
        if begin in self.begins and begin not in self.seams:
            begin = self.begins[begin]
            self._fill(begin)
        self._open(begin, end)

    def _open(self, begin: int, end: int) -> None:
        insort(self.holes, (end - begin, begin))
        self.ends[begin], self.begins[end] = end, begin

    def _fill(self, begin: int) -> int:
        """Forget the hole that begins here; return its end."""
        end = self.ends.pop(begin)
        del self.begins[end]
        self.holes.pop(bisect_left(self.holes, (end - begin, begin)))
        return end
