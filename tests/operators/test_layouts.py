"""Operators give the same bits whatever the operands hold of which only the layout matters."""

from collections.abc import Callable, Iterator
from typing import cast

import pytest
import torch
from torch import Tensor

from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.tracing.names import resolve_operator
from outgrow.ir.graph import Op, Ref
from outgrow.ir.text import parse_graph
from outgrow.operators import layouts
from outgrow.operators.layouts import layout_only
from outgrow.runtime.memory import unread
from outgrow.runtime.program import Call, Geometry
from tests.frontends.bits import same_bits

aten = torch.ops.aten

Case = tuple[str, tuple[object, ...]]
"""An operator, and its arguments."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
ADDRESSES = unread(1 << 24)


def laid_out(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor in dense, channels-last and transposed layout, and in the middle of a larger storage."""
    yield tensor
    if tensor.dim() in (4, 5):
        yield tensor.to(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)
    yield tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield torch.cat([tensor, tensor])[tensor.shape[0] :]


def pooling(dtype: torch.dtype, batch: int) -> Iterator[Case]:
    """Gradients of pooling and padding in two and three dimensions."""
    for sizes in ((13, 17), (7, 9, 10)):
        count = len(sizes)
        window = ([3] * count, [2] * count, [1] * count)
        for x in laid_out(torch.randn(batch, 8, *sizes).to(dtype)):
            pooled, indices = getattr(aten, f"max_pool{count}d_with_indices")(x, *window, [1] * count, False)
            rest = (*window, [1] * count, False, indices)
            yield f"max_pool{count}d_with_indices_backward", (torch.randn_like(pooled), x, *rest)
            for size in ([1] * count, [3] * count):
                gradient = torch.randn_like(getattr(aten, f"_adaptive_avg_pool{count}d")(x, size))
                yield f"_adaptive_avg_pool{count}d_backward", (gradient, x)
            pooled, indices = getattr(aten, f"adaptive_max_pool{count}d")(x, [3] * count)
            yield f"adaptive_max_pool{count}d_backward", (torch.randn_like(pooled), x, indices)
            for kind in ("reflection_pad", "replication_pad"):
                gradient = torch.randn_like(getattr(aten, f"{kind}{count}d")(x, [1] * (2 * count)))
                yield f"{kind}{count}d_backward", (gradient, x, [1] * (2 * count))
            if count == 2 or dtype != torch.bfloat16:  # torch has no average pooling of bfloat16 in three dimensions
                pooled = getattr(aten, f"avg_pool{count}d")(x, *window, False, True, None)
                yield f"avg_pool{count}d_backward", (torch.randn_like(pooled), x, *window, False, True, None)


def others(dtype: torch.dtype, batch: int) -> Iterator[Case]:
    """Fresh tensors after the likeness of another, and gradients of the negative log likelihood."""
    for x in laid_out(torch.randn(batch, 5, 6, 7).to(dtype)):
        yield "zeros_like", (x,)
        yield "ones_like", (x,)
        yield "full_like", (x, 2.5)
        yield "new_zeros", (x, [3, 4])
        yield "new_ones", (x, [3, 4])
        yield "new_full", (x, [3, 4], 1.5)
    for reduction in (0, 1, 2):
        for x in (torch.randn(40, 7).to(dtype), torch.randn(7, 40).to(dtype).t()):
            target = torch.randint(0, 7, (40,))
            loss, weight = aten.nll_loss_forward(x, target, None, reduction, -100)
            yield "nll_loss_backward", (torch.randn_like(loss), x, target, None, reduction, -100, weight)
        x, target = torch.randn(batch, 7, 5, 6).to(dtype), torch.randint(0, 7, (batch, 5, 6))
        loss, weight = aten.nll_loss2d_forward(x, target, None, reduction, -100)
        yield "nll_loss2d_backward", (torch.randn_like(loss), x, target, None, reduction, -100, weight)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cases", [pooling, others])
def test_a_stand_in_gives_the_same_bits(
    cases: Callable[[torch.dtype, int], Iterator[Case]], dtype: torch.dtype, batch: int
) -> None:
    """In every layout, an operator returns what it returns for the operand itself."""
    torch.manual_seed(0)
    for name, arguments in cases(dtype, batch):
        operator = f"aten.{name}.default"
        positions = layout_only(Op(name, operator, tuple(Ref("any") for _ in arguments)))
        assert len(positions) == 1
        at = positions[0]
        operand = cast("Tensor", arguments[at])
        offset = int(operand.storage_offset())
        layout = Geometry("any", operand.dtype, tuple(operand.shape), operand.stride(), offset)
        stand_in = layout.over(ADDRESSES)
        function = resolve_operator(operator)
        expected = function(*arguments)
        found = function(*arguments[:at], stand_in, *arguments[at + 1 :])
        assert same_bits(cast("Tensor", found), cast("Tensor", expected)), (name, operand.shape, operand.stride())


def test_every_operator_of_the_table_is_tried() -> None:
    """What is listed is what the cases above run."""
    tried = {f"aten.{name}.default" for cases in (pooling, others) for name, _ in cases(torch.float32, 1)}
    assert tried == set(layouts._POSITIONS)


def test_stand_ins_take_the_layout_of_the_value() -> None:
    """A lowered op gets a tensor of the dtype, shape, strides and offset of the value, over other memory."""
    graph = parse_graph(
        """
        storage x input 96
        storage y 96
        storage z 24
        value %x: x@0 f32[2,3]
        value %corner: y@0 f64[2,2]:[4,1]+3
        %y: y@0 f32[2,3] = aten.relu.default(%x)
        %z: z@0 f64[3] = aten.new_zeros.default(like %corner, [3])
        return %z
        """
    )
    call = lower(graph).instructions[1]
    assert isinstance(call, Call)
    assert call.values == ()
    stand_in = call.constants[0]
    assert isinstance(stand_in, Tensor)
    assert (stand_in.dtype, tuple(stand_in.shape), stand_in.stride()) == (torch.float64, (2, 2), (4, 1))
    assert stand_in.storage_offset() == 3
