"""The kernel of two operators that run as one, some rows at a time (`operators.rows`)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from outgrow.operators.rows import rows_at_a_time

_LIBRARY = torch.library.Library("outgrow_kernels", "DEF")
_ARGUMENTS = (
    "Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight, int dim, "
    "ScalarType input_dtype"
)
_aten: Any = torch.ops.aten


def _cross_entropy_backward(gradient: Tensor, log_probabilities: Tensor, *others: Any) -> Tensor:
    """Return the gradient of the logits (rows, classes), beside the log-probabilities."""
    return _into(torch.empty_like(log_probabilities), gradient, log_probabilities, *others)


def _cross_entropy_backward_(gradient: Tensor, log_probabilities: Tensor, *others: Any) -> Tensor:
    """Write the gradient of the logits (rows, classes) over the log-probabilities."""
    return _into(log_probabilities, gradient, log_probabilities, *others)


def _into(
    result: Tensor,
    gradient: Tensor,
    log_probabilities: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
    dim: int,
    input_dtype: torch.dtype,
) -> Tensor:
    for rows in _parts(log_probabilities):
        own = log_probabilities[rows]
        given = gradient[rows] if gradient.dim() else gradient
        made = _aten.nll_loss_backward(given, own, target[rows], weight, reduction, ignore_index, total_weight)
        _aten._log_softmax_backward_data.out(made, own, dim, input_dtype, out=result[rows])
    return result


def _parts(table: Tensor) -> Iterator[slice]:
    step = rows_at_a_time(table.shape[1] * table.itemsize)
    return (slice(begin, begin + step) for begin in range(0, table.shape[0], step))


for _name, _own, _kernel in (
    ("cross_entropy_backward", "Tensor", _cross_entropy_backward),
    ("cross_entropy_backward_", "Tensor(a!)", _cross_entropy_backward_),
):
    _LIBRARY.define(f"{_name}(Tensor gradient, {_own} log_probabilities, {_ARGUMENTS}) -> {_own}")
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
