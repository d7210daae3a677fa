"""What the planner's arrays hold, named once; and where groups begin that lie one after the other in an array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Reals = NDArray[np.float64]


def starts(counts: Sequence[int] | Integers) -> Integers:
    """Return where each of several groups begins, given their sizes, and last where they all end."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
