"""What the rules choose is what they say, however they find it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.planning.arrays import Integers, Reals
from outgrow.planning.search.choice import _give_back, widest

GAPS = st.lists(st.tuples(st.integers(0, 7), st.integers(2, 8), st.sampled_from((4, 8, 16))), max_size=12)


@settings(max_examples=500, deadline=None)
@given(
    live=st.lists(st.integers(0, 60), min_size=16, max_size=16),
    seconds=st.lists(st.sampled_from((0.25, 0.5, 2.0)), min_size=16, max_size=16),
    gaps=GAPS.map(sorted),
    target=st.integers(0, 60),
)
def test_the_widest_gaps_are_those_that_scoring_all_anew_finds(
    live: list[int], seconds: list[float], gaps: list[tuple[int, int, int]], target: int
) -> None:
    """Also where gaps lie within each other, and where several cover as much. All sums are exact in these numbers."""
    begin = np.array([at for at, _, _ in gaps], dtype=np.int64)
    end = begin + np.array([length for _, length, _ in gaps], dtype=np.int64)
    size = np.array([size for _, _, size in gaps], dtype=np.int64)
    plain = _one_by_one(np.array(live), np.array(seconds), begin, end, size, target)
    found = widest(np.array(live), np.array(seconds), begin, end, size, target)
    assert found.tolist() == plain.tolist()


def _one_by_one(
    live: Integers, seconds: Reals, begin: Integers, end: Integers, size: Integers, target: int
) -> Integers:
    """The gaps that are chosen if each is scored anew for each choice; what is not needed is given back."""
    over, weight = live - target, seconds + seconds.mean()
    moved = np.zeros(len(begin), np.int64)

    def covered(gap: int) -> float:
        inside = slice(begin[gap] + 1, end[gap])
        return float((np.clip(over[inside], 0, size[gap]) * weight[inside]).sum() / size[gap])

    while (over > 0).any():
        scores = {gap: covered(gap) for gap in range(len(moved)) if not moved[gap]}
        best = max(scores, key=lambda gap: scores[gap], default=None)
        if best is None or scores[best] == 0:
            break
        moved[best] = size[best]
        over[begin[best] + 1 : end[best]] -= size[best]
    _give_back(over, begin, end, moved, np.ones(len(moved), np.bool_), 1)
    return moved
