"""Which choices are cheapest together, where each cost depends on two of them? Exact elimination of variables.

    minimise  sum over edges (u, v) of cost[u, v][choice of u, choice of v]  +  sum over v of cost[v][choice of v]

A variable that few others depend on is eliminated: for each combination of what its neighbours choose, its best choice
and what that costs become a table over the neighbours, so an edge of several ends. When all are eliminated, they are
chosen in the opposite order. This is bucket elimination (R. Dechter, "Bucket Elimination: A Unifying Framework for
Reasoning", Artificial Intelligence 1999), with the fewest entries of the next table first.

Tables are known by identity, so what is added as one array many times is joined once.

The result is the optimum, unless a table would have more than `most_entries`: then the variable of most neighbours is
given the choice that costs least by itself and beside each neighbour's best, and the result says that it is not exact.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST_ENTRIES = 1 << 22

Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The number of each variable's choice, what they cost together, and whether nothing costs less."""

    choices: Mapping[str, int]
    cost: float
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Solved:
    """The best choice of a variable for each of its neighbours', what that costs, and the tables that say so."""

    best: NDArray[np.intp]
    cost: Table
    tables: tuple[Table, ...]


_Key: TypeAlias = tuple[tuple[int, ...], ...]
"""Of each table its identity, and which variables its axes are."""


@dataclass
class Choices:
    """Variables with some choices each, and costs of one or several of them."""

    sizes: dict[str, int] = field(default_factory=dict[str, int])
    _factors: dict[int, tuple[tuple[str, ...], Table]] = field(default_factory=dict[int, tuple[tuple[str, ...], Table]])
    _of: dict[str, dict[int, None]] = field(default_factory=dict[str, dict[int, None]])
    _known: dict[_Key, _Solved] = field(default_factory=dict[_Key, _Solved])
    _count: int = 0
    _constant: float = 0.0

    def add_variable(self, name: str, size: int) -> None:
        """Add a variable of so many choices."""
        assert name not in self.sizes, f"{name} is a variable once"
        assert size > 0, f"{name} has a choice"
        self.sizes[name] = size
        self._of[name] = {}

    def add_cost(self, names: Sequence[str], table: Table) -> None:
        """Add costs of the choices of some different variables, an axis each; one choice is none."""
        assert table.shape == tuple(self.sizes[name] for name in names), f"the axes are the choices of {names}"
        free = tuple(name for name in names if self.sizes[name] > 1)
        if not free:
            self._constant += float(table.sum())
            return
        same = table if len(free) == len(names) else table.reshape([self.sizes[name] for name in free])
        self._factors[self._count] = (free, same)
        for name in free:
            self._of[name][self._count] = None
        self._count += 1

    def cheapest(self, most_entries: int = MOST_ENTRIES) -> Chosen:
        """Return the cheapest choices of all variables; afterwards there are none left to choose."""
        orders: list[tuple[str, tuple[str, ...], NDArray[np.intp]]] = []
        is_exact = True
        waiting = [(self._entries(name), at, name) for at, name in enumerate(self.sizes)]
        heapq.heapify(waiting)
        left = dict.fromkeys(self.sizes)
        while waiting:
            entries, at, name = heapq.heappop(waiting)
            now = self._entries(name) if name in left else entries
            if name not in left or now != entries:
                if name in left:
                    heapq.heappush(waiting, (now, at, name))
                continue
            if entries > most_entries:
                is_exact = False
                self._fix(max(left, key=lambda item: len(self._neighbours(item))))
                heapq.heappush(waiting, (self._entries(name), at, name))
                continue
            del left[name]
            names, solved = self._solved(name)
            orders.append((name, names, solved.best))
            self.add_cost(names, solved.cost)
        return Chosen(_chosen(orders), self._constant, is_exact)

    def _neighbours(self, name: str) -> dict[str, None]:
        found = dict.fromkeys(other for number in self._of[name] for other in self._factors[number][0])
        found.pop(name, None)
        return found

    def _entries(self, name: str) -> int:
        return prod(self.sizes[other] for other in self._neighbours(name)) * self.sizes[name]

    def _solved(self, name: str) -> tuple[tuple[str, ...], _Solved]:
        """Take away all costs of a variable; return its neighbours, and what is best for each choice of theirs.

        Where the same tables meet in the same way, as in a layer that is repeated, that is known already.
        """
        names = tuple(self._neighbours(name))
        places = {other: at for at, other in enumerate((*names, name))}
        taken = [self._taken(number) for number in list(self._of[name])]
        key = tuple((id(table), *(places[other] for other in others)) for others, table in taken)
        if key not in self._known:
            axes = (*names, name)
            total = np.zeros([self.sizes[item] for item in axes])
            for others, table in taken:
                total = total + _spread(others, table, axes)
            self._known[key] = _Solved(total.argmin(axis=-1), total.min(axis=-1), tuple(table for _, table in taken))
        return names, self._known[key]

    def _taken(self, number: int) -> tuple[tuple[str, ...], Table]:
        names, table = self._factors.pop(number)
        for name in names:
            del self._of[name][number]
        return names, table

    def _fix(self, name: str) -> None:
        """Leave one choice to a variable: the cheapest by itself, where others choose what suits it."""
        alone = np.zeros(self.sizes[name])
        for number in self._of[name]:
            names, table = self._factors[number]
            others = tuple(axis for axis, other in enumerate(names) if other != name)
            alone += table.min(axis=others)
        best = int(alone.argmin())
        self.add_cost((name,), np.where(np.arange(self.sizes[name]) == best, 0.0, np.inf))
        for number in [number for number in self._of[name] if len(self._factors[number][0]) > 1]:
            names, table = self._taken(number)
            rest = tuple(other for other in names if other != name)
            self.add_cost(rest, np.take(table, best, axis=names.index(name)))


def _spread(names: Sequence[str], table: Table, axes: Sequence[str]) -> Table:
    """Return a table over some variables as one over more, to be added to such a one."""
    order = sorted(range(len(names)), key=lambda axis: axes.index(names[axis]))
    shape = [table.shape[names.index(name)] if name in names else 1 for name in axes]
    return table.transpose(order).reshape(shape)


def _chosen(orders: Iterable[tuple[str, tuple[str, ...], NDArray[np.intp]]]) -> dict[str, int]:
    choices: dict[str, int] = {}
    for name, names, best in reversed(list(orders)):
        choices[name] = int(best[tuple(choices[other] for other in names)])
    return choices
