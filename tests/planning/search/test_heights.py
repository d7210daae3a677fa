"""The largest of a stretch is what looking at every number finds, however stretches were raised before."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.planning.search.heights import height, heights_of, highest, lift


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), max_size=400), st.data())
def test_stretches_are_raised_and_asked_as_if_every_number_were(numbers: list[int], data: st.DataObject) -> None:
    """Stretches begin and end within blocks, at their borders, and may be empty."""
    plain = np.array(numbers, dtype=np.int64)
    heights = heights_of(plain.copy())
    for _ in range(data.draw(st.integers(0, 6))):
        begin, end = sorted(data.draw(st.tuples(*2 * [st.integers(0, len(plain))])))
        by = data.draw(st.integers(0, 5))
        lift(heights, begin, end, by)
        plain[begin:end] += by
        begin, end = sorted(data.draw(st.tuples(*2 * [st.integers(0, len(plain))])))
        assert highest(heights, begin, end) == plain[begin:end].max(initial=-(1 << 62))
    assert [height(heights, at) for at in range(len(plain))] == plain.tolist()
