"""Are hulls the smallest ranges that hold what is read?"""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from outgrow.operators.regions import hull, regions, simplified
from outgrow.operators.tdl import Operand, OperatorCall, OperatorResult, Place, Sum, described, indices
from tests.operators.test_tdl import NAMES, places, value

boxes = st.fixed_dictionaries(
    {name: st.tuples(st.integers(0, 6), st.integers(1, 5)).map(lambda pair: (pair[0], sum(pair))) for name in NAMES}
)


def _values(place: Place, box: dict[str, tuple[int, int]]) -> list[int]:
    ranges = [range(*box[name]) for name in NAMES]
    return [value(place, dict(zip(NAMES, at, strict=True))) for at in product(*ranges)]


@given(places(), boxes)
def test_a_hull_holds_every_place(place: Place, box: dict[str, tuple[int, int]]) -> None:
    """For all values of the variables in a box."""
    begin, end = hull(place, box)
    found = _values(place, box)
    assert begin <= min(found)
    assert max(found) < end


@given(st.lists(st.integers(-4, 4), min_size=len(NAMES), max_size=len(NAMES)), st.integers(-9, 9), boxes)
def test_the_hull_of_a_sum_of_multiples_is_exact(
    factors: list[int], constant: int, box: dict[str, tuple[int, int]]
) -> None:
    """No variable is in it twice."""
    place = Place((), constant)
    for variable, factor in zip(indices(" ".join(NAMES)), factors, strict=True):
        place = place + variable * factor
    found = _values(place, box)
    assert hull(place, box) == (min(found), max(found) + 1)


@given(places(), boxes)
def test_a_simplified_place_is_the_same_within_its_box(place: Place, box: dict[str, tuple[int, int]]) -> None:
    """At every value of the variables."""
    assert _values(simplified(place, box), box) == _values(place, box)


def test_halos_fall_out() -> None:
    """Half of a convolution's places need half of the input, and what the kernel covers beyond."""
    i, d = indices("i d")
    x, w = Operand(0, (8,)), Operand(1, (3,))
    found = described(
        OperatorCall("a.convolution", (x, w), ((8,),)), [OperatorResult.at((i,), Sum((d,), x[i + d - 1] * w[d]))]
    )
    assert regions(found, {"i": (0, 4), "d": (0, 3)}, "i") == {0: ((-1, 5),), 1: ((0, 3),)}
    assert regions(found, {"i": (4, 8), "d": (0, 3)}, "i") == {0: ((3, 9),), 1: ((0, 3),)}
    assert regions(found, {"i": (0, 8), "d": (0, 1)}, "d") == {0: ((-1, 7),), 1: ((0, 1),)}
