"""Which bytes of a storage? Ranges begin:end that neither overlap nor touch, in ascending order."""

Ranges = tuple[tuple[int, int], ...]
"""Disjoint ranges of bytes."""


def joined(ranges: Ranges, begin: int, end: int) -> Ranges:
    """Return the ranges with bytes begin:end.

    >>> joined(((0, 4), (8, 12)), 4, 6)
    ((0, 6), (8, 12))
    """
    if begin >= end:
        return ranges
    touching = [each for each in ranges if each[0] <= end and begin <= each[1]]
    first, last = min([begin, *(low for low, _ in touching)]), max([end, *(high for _, high in touching)])
    return tuple(sorted([*(each for each in ranges if each not in touching), (first, last)]))


def without(ranges: Ranges, begin: int, end: int) -> Ranges:
    """Return the ranges without bytes begin:end.

    >>> without(((0, 4), (8, 12)), 2, 9)
    ((0, 2), (9, 12))
    """
    found: list[tuple[int, int]] = []
    for low, high in ranges:
        found += [part for part in ((low, min(high, begin)), (max(low, end), high)) if part[0] < part[1]]
    return tuple(found)


def meets(ranges: Ranges, begin: int, end: int) -> bool:
    """Whether any of bytes begin:end is in the ranges."""
    return any(low < end and begin < high for low, high in ranges)


def covers(ranges: Ranges, begin: int, end: int) -> bool:
    """Whether all of bytes begin:end are in the ranges."""
    return begin >= end or any(low <= begin and end <= high for low, high in ranges)


def size_of(ranges: Ranges) -> int:
    """Return how many bytes the ranges have."""
    return sum(high - low for low, high in ranges)
