"""Are names of calls and literals exact inverses of what they name?"""

import math
import operator
from collections.abc import Callable

import pytest
import torch

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.names import Named, operator_name, resolve_operator, resolve_symbol, symbol_name


@pytest.mark.parametrize(
    "function",
    [
        torch.ops.aten.add.Tensor,
        torch.ops.aten._local_scalar_dense.default,
        operator.truediv,
        math.sqrt,
        torch.sym_float,
        torch.sym_max,
    ],
)
def test_a_function_is_found_again_by_its_name(function: Callable[..., object]) -> None:
    """Operators of torch and functions on host scalars survive being written down."""
    assert resolve_operator(operator_name(function)) is function


def test_a_function_without_a_name_is_refused() -> None:
    """A function of the user's cannot be stored in a plan."""
    with pytest.raises(Uncapturable, match="no name that a plan can store"):
        operator_name(lambda: None)


@pytest.mark.parametrize(
    "literal",
    [torch.bfloat16, torch.strided, torch.channels_last_3d, torch.device("cpu"), torch.device("cuda", 1)],
    ids=str,
)
def test_a_literal_is_found_again_by_its_name(literal: Named) -> None:
    """Dtypes, layouts, memory formats and devices survive being written down."""
    assert resolve_symbol(symbol_name(literal)) == literal
