"""A mixed-integer linear programme, written down variable by variable and row by row, and solved by HiGHS.

    min  sum of cost(j) * x(j)
    with lower(i) <= sum of coefficient(i, j) * x(j) <= upper(i)      for every row i
         lower(j) <= x(j) <= upper(j), x(j) an integer where so marked

HiGHS (Huangfu and Hall 2018, https://doi.org/10.1007/s12532-017-0130-5) is reached through scipy, which has no types
of its own: this module is where they are written down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]


@dataclass(frozen=True)
class Programme:
    """The programme while it is written down; variables and rows are numbered as they come."""

    costs: list[float] = field(default_factory=list[float])
    lowers: list[float] = field(default_factory=list[float])
    uppers: list[float] = field(default_factory=list[float])
    integers: list[bool] = field(default_factory=list[bool])
    row_lowers: list[float] = field(default_factory=list[float])
    row_uppers: list[float] = field(default_factory=list[float])
    row_starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list[int])
    coefficients: list[float] = field(default_factory=list[float])

    def variable(self, lower: float, upper: float, *, cost: float = 0.0, is_integer: bool = False) -> int:
        """Add a variable and return its number."""
        self.costs.append(cost)
        self.lowers.append(lower)
        self.uppers.append(upper)
        self.integers.append(is_integer)
        return len(self.costs) - 1

    def row(self, terms: Mapping[int, float], *, lower: float = -inf, upper: float = inf) -> None:
        """Add a row: coefficients by variable, and its bounds."""
        self.columns.extend(terms)
        self.coefficients.extend(terms.values())
        self.row_starts.append(len(self.columns))
        self.row_lowers.append(lower)
        self.row_uppers.append(upper)


class _Outcome(Protocol):
    """What scipy returns."""

    x: NDArray[np.float64] | None
    status: int


_OPTIMAL, _STOPPED = 0, 1
"""Scipy's codes for two of the ways in which a solver ends; infeasible is one of the others."""


@dataclass(frozen=True)
class Solution:
    """The best values found, if any were, whether they are proved best within the gap, and whether time ran out."""

    values: NDArray[np.float64] | None
    is_optimal: bool
    is_stopped: bool


def solve(programme: Programme, *, time_limit: float, gap: float) -> Solution:
    """Return the best solution found within `time_limit` seconds."""
    shape = (len(programme.row_lowers), len(programme.costs))
    matrix = csr_array((programme.coefficients, programme.columns, programme.row_starts), shape=shape)
    lowers, uppers = _array(programme.lowers), _array(programme.uppers)
    row_lowers, row_uppers = _array(programme.row_lowers), _array(programme.row_uppers)
    found: _Outcome = milp(  # pyright: ignore[reportAssignmentType]
        _array(programme.costs),
        integrality=np.array(programme.integers, dtype=np.int64),
        bounds=Bounds(lowers, uppers),  # pyright: ignore[reportArgumentType]
        constraints=LinearConstraint(matrix, row_lowers, row_uppers),  # pyright: ignore[reportArgumentType]
        options={"time_limit": time_limit, "mip_rel_gap": gap},
    )
    return Solution(found.x, found.status == _OPTIMAL, found.status == _STOPPED)


def _array(numbers: Sequence[float]) -> NDArray[np.float64]:
    return np.array(numbers, dtype=np.float64)
