"""The kernel that runs two operators some rows at a time has their bits, whatever is read and however many rows go."""

from typing import Any

import pytest
import torch
from torch import Tensor

from outgrow.frontends.lowering import by_rows
from outgrow.frontends.tracing.names import resolve_operator
from outgrow.operators.rows import JOINT, JOINT_IN_PLACE

aten: Any = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def _arguments(rows: int, classes: int, reduction: int, dtype: torch.dtype, *, is_weighted: bool) -> list[Any]:
    torch.manual_seed(rows)
    logits = torch.randn(rows, classes).to(dtype)
    target = torch.randint(classes, (rows,))
    target[rows // 2] = -100
    weight = torch.rand(classes).to(dtype) if is_weighted else None
    kept = aten._log_softmax(logits, 1, False)
    _, total = aten.nll_loss_forward(kept, target, weight, reduction, -100)
    gradient = torch.rand(rows if reduction == NONE else ()).to(dtype)
    return [gradient, kept, target, weight, reduction, -100, total, 1, dtype]


def _by_two(gradient: Tensor, kept: Tensor, *others: Any) -> Tensor:
    *others, dim, dtype = others
    made = aten.nll_loss_backward(gradient, kept, *others)
    return aten._log_softmax_backward_data(made, kept, dim, dtype)


@pytest.mark.parametrize("at_a_time", [1, 7, 64, 1000])
@pytest.mark.parametrize("is_weighted", [False, True], ids=["all alike", "weighted"])
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [2, 1009])
def test_the_kernel_has_the_bits_of_both_operators(
    classes: int, dtype: torch.dtype, reduction: int, is_weighted: bool, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 rows, beside what is read and over it; one row is ignored."""
    monkeypatch.setattr(by_rows, "rows_at_a_time", lambda _bytes: at_a_time)
    arguments = _arguments(200, classes, reduction, dtype, is_weighted=is_weighted)
    expected = _by_two(*arguments)
    beside: Any = resolve_operator(JOINT)(*arguments)
    assert torch.equal(beside.view(torch.uint8), expected.view(torch.uint8))
    over: Any = resolve_operator(JOINT_IN_PLACE)(*arguments)
    assert over.data_ptr() == arguments[1].data_ptr()
    assert torch.equal(arguments[1].view(torch.uint8), expected.view(torch.uint8))
