"""The kernels that put operands side by side, one after the other, copy what a concatenation copies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from outgrow.frontends.tracing.names import resolve_operator
from outgrow.ir.graph import Op, Ref, Value
from outgrow.operators.in_turn import BEGIN, PUT, in_turn
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by


def _operands(dtype: torch.dtype, layout: torch.memory_format) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(2, 4, 3, 5).mul(9).to(dtype).to(memory_format=layout) for _ in range(3)]
    made[1] = torch.cat([made[1], made[1]], 3)[..., ::2]
    return made


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.cat, torch.stack], ids=["cat", "stack"])
def test_the_kernels_have_the_bits_of_the_operator(
    function: Any, dim: int, dtype: torch.dtype, layout: torch.memory_format, order: tuple[int, ...]
) -> None:
    """In any order, and with the strides that the operator gives its result."""
    operands = _operands(dtype, layout)
    expected = function(operands, dim)
    values = {name: _value(name, own) for name, own in zip("abcy", (*operands, expected), strict=True)}
    call = (tuple(Ref(name) for name in "abc"), dim)
    turns = in_turn(Op("join", f"aten.{function.__name__}.default", call, results=("y",)), values)
    result: Any = None
    for at in order:
        begins, goes_on = turns[at]
        if result is None:
            result = _called(begins, operands[at])
        else:
            assert _called(goes_on, result, operands[at]) is result
    assert result.stride() == expected.stride()
    assert torch.equal(result.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def _value(name: str, tensor: Tensor) -> Value:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Value(name, name, 0, dtype, tuple(tensor.shape), tensor.stride())


def _called(op: Op, *tensors: Tensor) -> object:
    literals = [argument for argument in op.arguments if not isinstance(argument, Ref)]
    return resolve_operator(op.operator)(*tensors, *literals)


class _Branches(nn.Module):
    """Two branches side by side with what both read, again and again: results are read in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.rand(width, 1) for width in (2, 6, 18))
        self.shifts = nn.ParameterList(torch.rand(width, 1) for width in (2, 6, 18))

    def forward(self, x: Tensor) -> Tensor:
        for scale, shift in zip(self.scales, self.shifts, strict=True):
            x = torch.cat([x, x * scale, (x + shift).tanh()], 1)
        return x.tanh()


def _job() -> Job:
    net = _Branches()
    optimizer = SGD(net.parameters(), 0.01, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (net,), (optimizer,), lambda: (torch.randn(4, 2, 300),))


def test_a_net_of_branches_has_the_bits_of_eager_by_operand(disk_folder: Path) -> None:
    """In core, and within budgets where operands are not all there at once, also where a result is built again."""
    expected = left_by(_job, eager)
    spill = Spill(OnDisk(disk_folder))
    try:
        for share in (1.0, 0.5, 0.0):
            within = Within(share, spill)
            assert differences(left_by(_job, within), expected) == []
            ran = [op for ready in within.ready.values() for op in ready.derived.ops]
            assert any(op.operator == BEGIN for op in ran) == any(op.operator == PUT for op in ran) == (share < 1.0)
    finally:
        spill.close()
