"""Is what elimination chooses the cheapest of all?"""

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outgrow.planning.partition.elimination import Choices, Chosen, Table

Cost = tuple[tuple[int, ...], Table]


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Cost]]:
    """A few variables, and costs of one to three of them."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    numbers = st.integers(0, 9)
    costs: list[Cost] = []
    for _ in range(draw(st.integers(0, 9))):
        variables = st.sampled_from(range(len(sizes)))
        scope = tuple(draw(st.lists(variables, min_size=1, max_size=3, unique=True)))
        shape = [sizes[variable] for variable in scope]
        count = int(np.prod(shape))
        values = draw(st.lists(numbers, min_size=count, max_size=count))
        costs.append((scope, np.array(values, dtype=float).reshape(shape)))
    return sizes, costs


def cost_of(chosen: Sequence[int], costs: list[Cost]) -> float:
    """What some choices cost together."""
    return sum(float(table[tuple(chosen[variable] for variable in scope)]) for scope, table in costs)


def solved(sizes: list[int], costs: list[Cost], most_entries: int) -> Chosen:
    """What elimination chooses."""
    choices = Choices()
    for size in sizes:
        choices.add_variable(size)
    for scope, table in costs:
        choices.add_cost(scope, table)
    return choices.cheapest(most_entries)


@given(problems())
def test_nothing_is_cheaper(problem: tuple[list[int], list[Cost]]) -> None:
    """Of all combinations."""
    sizes, costs = problem
    found = solved(sizes, costs, 1 << 20)
    assert found.is_exact
    assert len(found.choices) == len(sizes)
    assert found.cost == cost_of(found.choices, costs)
    everything = product(*(range(size) for size in sizes))
    assert found.cost == min(cost_of(chosen, costs) for chosen in everything)


@given(problems())
def test_a_limit_of_entries_gives_some_choice_and_says_so(problem: tuple[list[int], list[Cost]]) -> None:
    """What it costs is what it says; where nothing was fixed, it is the cheapest."""
    sizes, costs = problem
    exact, found = solved(sizes, costs, 1 << 20), solved(sizes, costs, 4)
    assert found.cost == cost_of(found.choices, costs)
    assert found.cost >= exact.cost
    assert found.cost == exact.cost or not found.is_exact
