"""When does a captured step hold for other hyper-parameters? While the comparisons it made come out as they
did.

Tracing a step with a symbol for each hyper-parameter, and for each counter that it looks at, leaves a list of
conditions, `weight_decay != 0` say, and symbols that had to become the number they were. `Guards` is their
conjunction as one Python expression.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

T = TypeVar("T")


@dataclass(frozen=True)
class Guards:
    """A condition on hyper-parameters: `expression` over the names `parameters`, in this order.

    >>> Guards(("lr", "decay"), "decay != 0.0").hold([0.1, 0.0])
    False
    """

    parameters: tuple[str, ...] = ()
    expression: str = "True"

    def hold(self, values: Sequence[float]) -> bool:
        """Whether the condition is true of these values."""
        return self._condition(*values)

    @cached_property
    def _condition(self) -> Callable[..., bool]:
        return eval(f"lambda {', '.join(self.parameters)}: bool({self.expression})", {"math": math, "torch": torch})  # noqa: S307 - it wrote the text itself


class _Printer(PythonPrinter):
    """Writes numbers with all their digits."""

    def _print_Float(self, expr: sympy.Float) -> str:  # noqa: N802
        return repr(float(expr))


class Symbols(ShapeEnv):
    """An environment of symbols, of which it may be assumed that they are not negative without asking sympy first."""

    def __init__(self) -> None:
        super().__init__(allow_dynamic_output_shape_ops=False)
        self._not_negative: dict[sympy.Expr, None] = {}

    def assume_not_negative(self, number: torch.SymFloat | torch.SymInt) -> None:
        """Assume of a number, which is known not to be negative now, that it is not in later calls."""
        self._not_negative.setdefault(number.node.expr)

    def assumed(self) -> list[sympy.Basic]:
        """Return what a trace assumed."""
        return [*(guard.expr for guard in self.guards), *(sympy.Ge(n, 0, evaluate=False) for n in self._not_negative)]


def symbol(shape_env: ShapeEnv, name: str, value: float) -> torch.SymFloat | torch.SymInt:
    """Return a symbol for a number that may be another one at the next call; comparisons come out as for `value`.

    It is of the type of the number; one for a whole number may be 0 or 1 as well.
    """
    source = ConstantSource(name)
    made = shape_env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    create = shape_env.create_symintnode if type(value) is int else shape_env.create_symfloatnode
    found = create(made, hint=value, source=source)
    assert isinstance(found, torch.SymFloat | torch.SymInt), "an unspecified symbol is no number"
    return found


def asked(shape_env: Symbols, seen: Mapping[sympy.Symbol, tuple[T, float]]) -> dict[sympy.Symbol, tuple[T, float]]:
    """Return those of the numbers `seen` that the trace assumed something about, or that are not finite."""
    matters = set(shape_env.replacements).union(*(expr.free_symbols for expr in shape_env.assumed()))
    return {symbol: found for symbol, found in seen.items() if symbol in matters or not math.isfinite(found[1])}


def guards(shape_env: Symbols, symbols: Sequence[sympy.Symbol], values: Sequence[float]) -> Guards:
    """Return what the trace assumed about `symbols`, which stood for `values`; those that are not finite must stay."""
    names = {symbol: f"hyper_{at}" for at, symbol in enumerate(symbols)}
    renamed = {symbol: sympy.Symbol(name, **symbol.assumptions0) for symbol, name in names.items()}
    pairs = zip(symbols, values, strict=True)
    fixed = {symbol: value for symbol, value in pairs if symbol in shape_env.replacements or not math.isfinite(value)}
    conditions = [_is_the_same(names[symbol], value) for symbol, value in fixed.items()]
    assumed = [expr for expr in shape_env.assumed() if expr.free_symbols <= names.keys()]
    conditions += [
        f"({_Printer().doprint(expr.xreplace(renamed))})" for expr in assumed if not expr.free_symbols <= fixed.keys()
    ]
    return Guards(tuple(names.values()), " and ".join(dict.fromkeys(conditions)) or "True")


def _is_the_same(name: str, value: float) -> str:
    if math.isnan(value):
        return f"math.isnan({name})"
    return f"{name} == {'-' if value < 0 else ''}math.inf" if math.isinf(value) else f"{name} == {value!r}"
