"""Do places calculate like the numbers that they stand for?"""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.operators.tdl import (
    ALL,
    Floor,
    Operand,
    OperatorCall,
    OperatorResult,
    Place,
    Sum,
    Variable,
    described,
    elements,
    indices,
)

NAMES: tuple[str, ...] = ("i", "j", "k")
Numbers = Mapping[str, int]


def value(place: Place, numbers: Numbers) -> int:
    """The number that a place is."""
    total = place.constant
    for atom, factor in place.terms:
        match atom:
            case Variable(name):
                total += factor * numbers[name]
            case _:
                of = value(atom.of, numbers)
                total += factor * (of // atom.by if isinstance(atom, Floor) else of % atom.by)
    return total


def places() -> st.SearchStrategy[Place]:
    """Variables, added, multiplied and divided."""
    leaves = st.sampled_from(indices(" ".join(NAMES))) | st.integers(-9, 9).map(lambda number: Place((), number))
    factors, divisors = st.integers(-4, 4), st.integers(1, 6)

    def extended(inner: st.SearchStrategy[Place]) -> st.SearchStrategy[Place]:
        return st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] - pair[1]),
            st.tuples(inner, factors).map(lambda pair: pair[0] * pair[1]),
            st.tuples(inner, divisors).map(lambda pair: pair[0] // pair[1]),
            st.tuples(inner, divisors).map(lambda pair: pair[0] % pair[1]),
        )

    return st.recursive(leaves, extended, max_leaves=6)


numbers = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})


@given(places(), places(), numbers, st.integers(-4, 4), st.integers(1, 6))
def test_places_calculate_like_numbers(one: Place, other: Place, at: Numbers, factor: int, by: int) -> None:
    """Sums, multiples, quotients and remainders."""
    left, right = value(one, at), value(other, at)
    assert value(one + other, at) == left + right
    assert value(one - other, at) == left - right
    assert value(one * factor, at) == left * factor
    assert value(one // by, at) == left // by
    assert value(one % by, at) == left % by


@given(places(), numbers, st.fixed_dictionaries({name: st.integers(-5, 5) for name in NAMES}))
def test_a_shifted_place_is_the_place_of_a_shifted_variable(place: Place, at: Numbers, by: Numbers) -> None:
    """Whatever is in it."""
    for name in NAMES:
        assert value(place.shifted(name, by[name]), at) == value(place, {**at, name: at[name] + by[name]})


@given(places())
def test_a_place_depends_on_its_variables_alone(place: Place) -> None:
    """No other variable changes it."""
    others: dict[str, int] = dict.fromkeys(NAMES, 7)
    for name in NAMES:
        if name not in place.variables:
            assert value(place, others) == value(place, {**others, name: 3})


def test_variables_go_as_far_as_their_dimensions() -> None:
    """Those of results, and those of reductions; a place that is no variable says nothing."""
    b, i, d = indices("b i d")
    x, w = Operand(0, (4, 9)), Operand(1, (3,))
    call = OperatorCall("a.convolution", (x, w), ((4, 7),))
    found = described(call, [OperatorResult.at((b, i), Sum((d,), x[b, i + d] * w[d]))])
    assert found.extents == {"b": 4, "i": 7, "d": 3}
    assert [element.operand for result in found.results if result for element in elements(result.value)] == [0, 1]


@pytest.mark.parametrize("read", [lambda x, i: x[i], lambda x, i: x[i, i, ALL]])
def test_an_element_has_a_place_in_each_dimension(read: Callable[[Operand, Place], object]) -> None:
    """One too few or too many is our own bug."""
    (i,) = indices("i")
    with pytest.raises(AssertionError, match="has 2 dimensions"):
        read(Operand(0, (2, 2)), i)
