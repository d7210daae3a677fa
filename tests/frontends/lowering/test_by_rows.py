"""The kernel that runs two operators some rows at a time has their bits, whatever is read and however many rows go."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from outgrow.frontends.lowering import by_rows
from outgrow.frontends.tracing.names import resolve_operator
from outgrow.operators import rows
from outgrow.operators.rows import JOINT, JOINT_IN_PLACE
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by

aten: Any = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


def _arguments(count: int, classes: int, reduction: int, dtype: torch.dtype, *, is_weighted: bool) -> list[Any]:
    torch.manual_seed(count)
    logits = torch.randn(count, classes).to(dtype)
    target = torch.randint(classes, (count,))
    target[count // 2] = -100
    weight = torch.rand(classes).to(dtype) if is_weighted else None
    kept = aten._log_softmax(logits, 1, False)
    _, total = aten.nll_loss_forward(kept, target, weight, reduction, -100)
    gradient = torch.rand(count if reduction == NONE else ()).to(dtype)
    return [gradient, kept, target, weight, reduction, -100, total, 1, dtype]


def _by_two(gradient: Tensor, kept: Tensor, *others: Any) -> Tensor:
    made = aten.nll_loss_backward(gradient, kept, *others[:-2])
    return aten._log_softmax_backward_data(made, kept, *others[-2:])


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


def _words(reduction: str, dtype: torch.dtype) -> Job:
    """A model of 300 words; some words are not asked for, and words count differently."""
    model = nn.Sequential(nn.Embedding(300, 8), nn.LayerNorm(8), nn.Linear(8, 300, bias=False))
    optimizer = AdamW(model.parameters(), 0.01)
    weight = torch.linspace(0.5, 1.5, 300)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            logits = model(x)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), weight, reduction=reduction).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def batch() -> tuple[Tensor, Tensor]:
        y = torch.randint(300, (4, 50))
        y[:, :3] = -100
        return torch.randint(300, (4, 50)), y

    return Job(step, (model,), (optimizer,), batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_language_model_has_the_bits_of_eager_by_rows(
    reduction: str, dtype: torch.dtype, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In core, and within budgets where the loss is differentiated some rows at a time."""
    for module in (by_rows, rows):
        monkeypatch.setattr(module, "rows_at_a_time", lambda _bytes: 64)
    expected = left_by(lambda: _words(reduction, dtype), eager)
    spill = Spill(OnDisk(disk_folder))
    try:
        for share in (1.0, 0.5, 0.0):
            within = Within(share, spill)
            assert differences(left_by(lambda: _words(reduction, dtype), within), expected) == []
            ran = {op.operator for ready in within.ready.values() for op in ready.derived.ops}
            assert (JOINT_IN_PLACE in ran) == (share < 1.0)
    finally:
        spill.close()
