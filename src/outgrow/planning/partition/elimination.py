"""Which choices are cheapest together, where each cost depends on two of them? Exact elimination of variables.

    minimise  sum over edges (u, v) of cost[u, v][choice of u, choice of v]  +  sum over v of cost[v][choice of v]

To eliminate a variable, the cost of its best choice is tabulated for each combination of its neighbours' choices: the
table is one edge between all of them. When all are eliminated, they are chosen in the opposite order. This is bucket
elimination (R. Dechter, "Bucket Elimination: A Unifying Framework for Reasoning", Artificial Intelligence 1999), with
the fewest entries of the next table first (`elimination_order`): each cost waits in the bucket of the first of its
variables, which is its first axis.

Tables are known by identity, so an array that is added many times is joined only once.

The result is the optimum, unless a table would have more than `most_entries`: then the variable with most neighbours is
fixed to the choice that is cheapest if every neighbour chose in its favour, and the result says that it is not exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from outgrow.planning.arrays import Reals
from outgrow.planning.partition.elimination_order import elimination_order

Table = Reals
_Cost: TypeAlias = tuple[tuple[int, ...], Table]
"""Different variables, and a table with an axis for each."""
_Key: TypeAlias = tuple[tuple[int, ...], ...]
"""Of each table its identity, and which neighbours its axes are."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The number of each variable's choice, what they cost together, and whether nothing costs less."""

    choices: tuple[int, ...]
    cost: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """The costs of one variable: the first axis of each table is its own, the others are neighbours', by number.

    `best` has its best choice for each combination of neighbours' choices that was asked for.
    """

    costs: tuple[_Cost, ...]
    best: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])

    def least(self, sizes: Sequence[int]) -> Table:
        """Return the cost of the best choice for every combination of neighbours' choices, `sizes` of each."""
        total: Table = np.zeros([1] * (1 + len(sizes)))
        for axes, table in sorted(self.costs, key=lambda cost: cost[1].size):
            shape = [1] * len(sizes)
            for axis in axes:
                shape[axis] = sizes[axis]
            total = total + table.reshape(-1, *shape)
        return np.minimum.reduce(total, axis=0)

    def choice(self, around: tuple[int, ...]) -> int:
        """Return the best choice if the neighbours choose `around`."""
        if around not in self.best:
            total: Table = np.zeros(1)
            for axes, table in self.costs:
                total = total + table[:, *(around[axis] for axis in axes)]
            self.best[around] = int(total.argmin())
        return self.best[around]


@dataclass
class _Sweep:
    """Variables of some sizes, numbered in the order in which they are eliminated, and the costs of those left."""

    sizes: Sequence[int]
    waiting: Sequence[list[_Cost]]
    cost: float = 0.0
    _known: dict[_Key, tuple[Bucket, Table]] = field(default_factory=dict[_Key, tuple["Bucket", Table]])
    _solved: list[tuple[Bucket, tuple[int, ...]]] = field(default_factory=list[tuple["Bucket", tuple[int, ...]]])

    def add(self, scope: tuple[int, ...], table: Table) -> None:
        """Add a cost of variables in their order; it waits for the first of them."""
        if scope:
            self.waiting[scope[0]].append((scope, table))
        else:
            self.cost += float(table)

    def eliminate(self, variable: int, around: tuple[int, ...]) -> None:
        """Eliminate the next variable: what its best choice costs, given its neighbours' choices, becomes their cost.

        Where the same tables meet in the same way, as in a layer that is repeated, that is known already.
        """
        numbers = {other: number for number, other in enumerate(around)}
        costs = [(tuple([numbers[other] for other in scope[1:]]), table) for scope, table in self.waiting[variable]]
        key = tuple([(id(table), *axes) for axes, table in costs])
        if key not in self._known:
            bucket = Bucket(tuple(costs))
            self._known[key] = bucket, bucket.least([self.sizes[other] for other in around])
        bucket, least = self._known[key]
        self._solved.append((bucket, around))
        self.add(around, least)

    def fix(self, variable: int) -> None:
        """Fix the next variable to the one choice that is cheapest if every neighbour chose in its favour."""
        alone = np.zeros(self.sizes[variable])
        for _, table in self.waiting[variable]:
            alone += table.reshape(len(alone), -1).min(axis=1)
        best = int(alone.argmin())
        self._solved.append((Bucket((), {(): best}), ()))
        for scope, table in self.waiting[variable]:
            self.add(scope[1:], table[best])

    def choices(self) -> list[int]:
        """Return the choices of all variables, once they are eliminated: each the best, given those of later ones."""
        found = [0] * len(self.sizes)
        for variable in reversed(range(len(found))):
            bucket, around = self._solved[variable]
            found[variable] = bucket.choice(tuple([found[other] for other in around]))
        return found


@dataclass(frozen=True)
class Choices:
    """Variables with some choices each, numbered as they are added, and costs of one or several of them."""

    sizes: list[int] = field(default_factory=list[int])
    _costs: list[_Cost] = field(default_factory=list[_Cost])
    _turned: dict[tuple[int, ...], tuple[Table, Table]] = field(
        default_factory=dict[tuple[int, ...], tuple[Table, Table]]
    )

    def add_variable(self, size: int) -> int:
        """Add a variable with `size` choices; return its number."""
        assert size > 0, "a variable has a choice"
        self.sizes.append(size)
        return len(self.sizes) - 1

    def add_cost(self, variables: tuple[int, ...], table: Table) -> None:
        """Add a table of costs, with an axis for each of some distinct variables; those with one choice drop out."""
        sizes = tuple([self.sizes[variable] for variable in variables])
        assert table.shape == sizes, f"the axes are the choices of {variables}"
        if 1 in sizes:
            axes = tuple(axis for axis, size in enumerate(sizes) if size > 1)
            variables, table = tuple(variables[axis] for axis in axes), self._with(table, axes)
        self._costs.append((variables, table))

    def cheapest(self, most_entries: int) -> Chosen:
        """Return the cheapest choices of all variables."""
        order = elimination_order(self.sizes, (scope for scope, _ in self._costs), most_entries)
        places = {variable: place for place, variable in enumerate(order.variables)}
        sweep = _Sweep([self.sizes[variable] for variable in order.variables], [[] for _ in order.variables])
        for scope, table in self._costs:
            found = [places[variable] for variable in scope]
            ordered = sorted(found)
            axes = None if found == ordered else tuple(map(found.index, ordered))
            sweep.add(tuple(ordered), table if axes is None else self._with(table, axes))
        for place, variable in enumerate(order.variables):
            if variable in order.fixed:
                sweep.fix(place)
            else:
                sweep.eliminate(place, tuple(sorted([places[other] for other in order.beside[variable]])))
        choices = sweep.choices()
        return Chosen(
            tuple(choices[places[variable]] for variable in range(len(self.sizes))), sweep.cost, not order.fixed
        )

    def _with(self, table: Table, axes: tuple[int, ...]) -> Table:
        """Return a table with only `axes`, in this order, the others being of size 1; the same array each time."""
        key = (id(table), *axes)
        if key not in self._turned:
            others = (axis for axis in range(table.ndim) if axis not in axes)
            turned = table.transpose(*axes, *others).reshape([table.shape[axis] for axis in axes])
            self._turned[key] = (table, turned.copy())
        return self._turned[key][1]
