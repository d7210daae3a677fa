"""Is what elimination chooses the cheapest of all?"""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outgrow.planning.elimination import Choices, Chosen, Table

Cost = tuple[tuple[str, ...], Table]


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, int], list[Cost]]:
    """A few variables, and costs of one to three of them."""
    sizes = {f"v{at}": draw(st.integers(1, 3)) for at in range(draw(st.integers(1, 6)))}
    numbers = st.integers(0, 9)
    costs: list[Cost] = []
    for _ in range(draw(st.integers(0, 9))):
        names = tuple(draw(st.lists(st.sampled_from(list(sizes)), min_size=1, max_size=3, unique=True)))
        shape = [sizes[name] for name in names]
        count = int(np.prod(shape))
        values = draw(st.lists(numbers, min_size=count, max_size=count))
        costs.append((names, np.array(values, dtype=float).reshape(shape)))
    return sizes, costs


def cost_of(chosen: dict[str, int], costs: list[Cost]) -> float:
    """What some choices cost together."""
    return sum(float(table[tuple(chosen[name] for name in names)]) for names, table in costs)


def solved(sizes: dict[str, int], costs: list[Cost], most_entries: int) -> Chosen:
    """What elimination chooses."""
    choices = Choices()
    for name, size in sizes.items():
        choices.add_variable(name, size)
    for names, table in costs:
        choices.add_cost(names, table)
    return choices.cheapest(most_entries)


@given(problems())
def test_nothing_is_cheaper(problem: tuple[dict[str, int], list[Cost]]) -> None:
    """Of all combinations."""
    sizes, costs = problem
    found = solved(sizes, costs, 1 << 20)
    assert found.is_exact
    assert found.choices.keys() == sizes.keys()
    assert found.cost == cost_of(dict(found.choices), costs)
    everything = (dict(zip(sizes, at, strict=True)) for at in product(*(range(size) for size in sizes.values())))
    assert found.cost == min(cost_of(chosen, costs) for chosen in everything)


@given(problems())
def test_a_limit_of_entries_gives_some_choice_and_says_so(problem: tuple[dict[str, int], list[Cost]]) -> None:
    """What it costs is what it says; where nothing was fixed, it is the cheapest."""
    sizes, costs = problem
    exact, found = solved(sizes, costs, 1 << 20), solved(sizes, costs, 4)
    assert found.cost == cost_of(dict(found.choices), costs)
    assert found.cost >= exact.cost
    assert found.cost == exact.cost or not found.is_exact
