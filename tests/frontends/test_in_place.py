"""Every form that writes over its first operand computes the bits of the operator that it stands for."""

import pytest
import torch

from outgrow.frontends.lower import function_of
from outgrow.frontends.names import resolve_operator
from outgrow.ir.graph import Op, Ref
from outgrow.operators.in_place import IN_PLACE

_TENSORS = {"add", "sub", "mul", "div"}
_SCALARS: dict[str, tuple[object, ...]] = {
    "hardtanh_backward": (-1.0, 1.0),
    "leaky_relu_backward": (0.01, False),
    "softplus_backward": (1.0, 20.0),
    "threshold_backward": (0.0,),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("operator", sorted(IN_PLACE))
def test_the_form_gives_the_same_bits(operator: str, layout: torch.memory_format, dtype: torch.dtype) -> None:
    """Over 4 x 5 x 6 x 7 random numbers, the result lies in the operand and equals what the operator returns."""
    torch.manual_seed(0)
    name = operator.split(".")[1]
    first = torch.randn(4, 5, 6, 7).to(dtype, memory_format=layout)
    others: tuple[object, ...] = _SCALARS.get(name, ())
    if name in _TENSORS or name.endswith("_backward"):
        others = (torch.randn(4, 5, 6, 7).to(dtype, memory_format=layout), *others)
    expected = resolve_operator(operator)(first.clone(), *others)
    form = Op("form", IN_PLACE[operator], (Ref("first"),))
    found = function_of(form)(first, *others)
    assert isinstance(expected, torch.Tensor)
    assert isinstance(found, torch.Tensor)
    assert found.data_ptr() == first.data_ptr()
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
    assert found.stride() == expected.stride()
