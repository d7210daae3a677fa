"""Which bytes of a tier are free? A list of gaps: first fit, and neighbours grow together again.

Offsets and sizes are multiples of `alignment`; what is asked for is rounded up. A plan asks for a few hundred extents,
so lists are searched from the front.
"""

from bisect import bisect
from dataclasses import dataclass, field


@dataclass
class Extents:
    """The free gaps of a tier, as (begin, end), in order; no two of them touch."""

    alignment: int
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def allocate(self, size_bytes: int) -> int | None:
        """Return the offset of an extent of at least `size_bytes`, now taken; None if no gap is large enough."""
        size = self._rounded(size_bytes)
        for at, (begin, end) in enumerate(self.gaps):
            if end - begin >= size:
                self.gaps[at : at + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def free(self, offset: int, size_bytes: int) -> None:
        """Give an extent back, or a part of one that begins and ends on the alignment."""
        begin, end = offset, offset + self._rounded(size_bytes)
        at = bisect(self.gaps, (begin, end))
        before, behind = self.gaps[:at], self.gaps[at:]
        is_taken = (not before or before[-1][1] <= begin) and (not behind or end <= behind[0][0])
        assert is_taken, f"{begin}:{end} is freed, but some of it is free"
        if before and before[-1][1] == begin:
            begin = before.pop()[0]
        if behind and behind[0][0] == end:
            end = behind.pop(0)[1]
        self.gaps[:] = [*before, (begin, end), *behind]

    @property
    def largest_gap(self) -> int:
        """Bytes of the largest extent that can be taken now."""
        return max((end - begin for begin, end in self.gaps), default=0)

    def _rounded(self, size_bytes: int) -> int:
        assert size_bytes > 0, f"an extent holds bytes, not {size_bytes}"
        return -(-size_bytes // self.alignment) * self.alignment
