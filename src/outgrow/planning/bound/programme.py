"""A linear programme, written down variable by variable and row by row, and solved by HiGHS.

    min  sum of cost(j) * x(j)
    with lower(i) <= sum of coefficient(i, j) * x(j) <= upper(i)      for every row i
         lower(j) <= x(j) <= upper(j), x(j) an integer where so marked

HiGHS: Huangfu and Hall 2018, "Parallelizing the dual revised simplex method",
https://doi.org/10.1007/s12532-017-0130-5. Its first-order method for large programmes of real numbers is PDLP:
Applegate et al. 2021, "Practical large-scale linear programming using primal-dual hybrid gradient",
https://arxiv.org/abs/2106.04756. Where an interior point method takes a minute, it takes some seconds. The solver is
loaded when it is first asked: a training asks none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from outgrow.planning.arrays import Reals

if TYPE_CHECKING:
    from highspy import Highs

_LARGE = 2_000
"""From so many variables on the first-order method is used; below, the simplex method is as quick, and exact."""
_TOLERANCE = 1e-4
"""How far in proportion the first-order method may be from an optimum, and so what is proved from the best proof."""
_SECONDS = 120.0
"""When the solver gives up: far more than it takes."""
_ROUNDING = 1e-9
_LACKING = (
    "A bound, or the planner olla, was asked for, which takes the solver HiGHS: python -m pip install 'highspy>=1.12'. "
    "A training needs neither."
)


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

    def row(self, terms: Iterable[tuple[int, float]], *, lower: float = -inf, upper: float = inf) -> None:
        """Add a row: variables with their coefficients, which add up where one occurs twice, and its bounds."""
        coefficients: dict[int, float] = {}
        for variable, coefficient in terms:
            coefficients[variable] = coefficients.get(variable, 0.0) + coefficient
        self.columns.extend(coefficients)
        self.coefficients.extend(coefficients.values())
        self.row_starts.append(len(self.columns))
        self.row_lowers.append(lower)
        self.row_uppers.append(upper)


@dataclass(frozen=True)
class Solution:
    """The best values found, if any were, whether they are proved best within the gap, and whether time ran out."""

    values: Reals | None
    is_optimal: bool
    is_stopped: bool


def solve(programme: Programme, *, time_limit: float, gap: float) -> Solution:
    """Return the best solution found within `time_limit` seconds."""
    solver = _given(programme)
    from highspy import HighsModelStatus  # noqa: PLC0415

    solver.setOptionValue("time_limit", time_limit)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.run()
    status = solver.getModelStatus()
    values = np.array(solver.getSolution().col_value)
    is_found = solver.getInfo().primal_solution_status == _FEASIBLE
    return Solution(
        values if is_found else None, status == HighsModelStatus.kOptimal, status == HighsModelStatus.kTimeLimit
    )


_FEASIBLE = 2
"""What HiGHS calls a solution that keeps all bounds."""


def proven_least(programme: Programme) -> float:
    """Return what the costs of a programme of real numbers cannot be below; minus infinity if that is unknown.

    The solver is not trusted. By weak duality, for any prices y of the rows,

        sum over the rows of y times (lower if y > 0 else upper)
        + sum over the variables of the least (cost - y A) x in their range

    is such a bound. Its prices are scaled down until `cost - y A` is not negative for variables whose range has no end;
    these must have positive costs, and every other variable a finite range.
    """
    solver = _given(programme)
    solver.setOptionValue("time_limit", _SECONDS)
    if len(programme.costs) >= _LARGE:
        solver.setOptionValue("solver", "pdlp")
        solver.setOptionValue("kkt_tolerance", _TOLERANCE)
    solver.run()
    prices = np.array(solver.getSolution().row_dual)
    return _by_duality(programme, prices) if len(prices) == len(programme.row_lowers) else -inf


def _by_duality(programme: Programme, prices: Reals) -> float:
    """Return the bound that prices of the rows prove; those of a side that has no bound are not asked for."""
    costs, lowers, uppers = map(np.array, (programme.costs, programme.lowers, programme.uppers))
    row_lowers, row_uppers = np.array(programme.row_lowers), np.array(programme.row_uppers)
    prices = np.clip(prices, np.where(np.isinf(row_uppers), 0.0, -inf), np.where(np.isinf(row_lowers), 0.0, inf))
    endless = np.isinf(uppers)
    asked = _weighted(programme, prices)
    prices /= max(1.0, float(np.max(asked[endless] / costs[endless], initial=0.0)))
    reduced = costs - _weighted(programme, prices)
    least = np.where((reduced > 0) | endless, lowers, uppers)
    sides = np.where(prices > 0, row_lowers, np.where(prices < 0, row_uppers, 0.0))
    return float(least @ reduced + prices @ sides) * (1 - _ROUNDING)


def _weighted(programme: Programme, prices: Reals) -> Reals:
    """Return y A: for each variable the sum of its coefficients, each times the price of its row."""
    total = np.zeros(len(programme.costs))
    np.add.at(
        total, programme.columns, np.array(programme.coefficients) * np.repeat(prices, np.diff(programme.row_starts))
    )
    return total


def _given(programme: Programme) -> "Highs":
    """Return a solver that was given a programme. Raises `ModuleNotFoundError`, with what to do, for none."""
    try:
        from highspy import Highs, HighsLp, HighsVarType, MatrixFormat  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_LACKING, name=error.name) from error

    stated = HighsLp()
    stated.num_col_, stated.num_row_ = len(programme.costs), len(programme.row_lowers)
    stated.col_cost_, stated.col_lower_, stated.col_upper_ = map(
        np.array, (programme.costs, programme.lowers, programme.uppers)
    )
    stated.row_lower_, stated.row_upper_ = np.array(programme.row_lowers), np.array(programme.row_uppers)
    stated.a_matrix_.format_ = MatrixFormat.kRowwise
    stated.a_matrix_.start_ = np.array(programme.row_starts, dtype=np.int32)
    stated.a_matrix_.index_ = np.array(programme.columns, dtype=np.int32)
    stated.a_matrix_.value_ = np.array(programme.coefficients)
    if any(programme.integers):
        kinds = {False: HighsVarType.kContinuous, True: HighsVarType.kInteger}
        stated.integrality_ = [kinds[is_integer] for is_integer in programme.integers]
    solver = Highs()
    solver.silent()
    solver.passModel(stated)
    return solver
