"""Which is the largest of the numbers in a stretch, where stretches are raised again and again?

Numbers are taken together in blocks. For each block the largest number is known, and by how much the whole block was
raised: so neither asking nor raising looks at every number. Compiled, like its callers.
"""

from typing import NamedTuple

import numpy as np

from outgrow.planning.arrays import Integers
from outgrow.planning.compiled import compiled

_BLOCK = 64
_LEAST = -(1 << 62)


class Heights(NamedTuple):
    """`numbers` without what their blocks were `raised` by, and the `highest` of each block, which includes it."""

    numbers: Integers
    highest: Integers
    raised: Integers


@compiled
def heights_of(numbers: Integers) -> Heights:
    """Return the heights of numbers; the array belongs to the heights from then on."""
    highest = np.empty(-(-len(numbers) // _BLOCK), np.int64)
    for block in range(len(highest)):
        highest[block] = numbers[block * _BLOCK : (block + 1) * _BLOCK].max()
    return Heights(numbers, highest, np.zeros(len(highest), np.int64))


@compiled
def height(heights: Heights, at: int) -> int:
    """Return one number."""
    return heights.numbers[at] + heights.raised[at // _BLOCK]


@compiled
def highest(heights: Heights, begin: int, end: int) -> int:
    """Return the largest of the numbers from `begin` to `end`; of an empty stretch, a number below all others."""
    found, at = _LEAST, begin
    while at < end:
        if at % _BLOCK == 0 and at + _BLOCK <= end:
            found = max(found, heights.highest[at // _BLOCK])
            at += _BLOCK
        else:
            found = max(found, height(heights, at))
            at += 1
    return found


@compiled
def lift(heights: Heights, begin: int, end: int, by: int) -> None:
    """Raise the numbers from `begin` to `end` by `by`, which is not negative."""
    at = begin
    while at < end:
        block = at // _BLOCK
        if at % _BLOCK == 0 and at + _BLOCK <= end:
            heights.highest[block] += by
            heights.raised[block] += by
            at += _BLOCK
        else:
            heights.numbers[at] += by
            heights.highest[block] = max(heights.highest[block], height(heights, at))
            at += 1
