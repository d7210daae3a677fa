"""Of which type are results whose fake results say another than the kernel, or that the fake operator refuses?

Normalisations in mixed precision: under autocast the input has 16 bits a number and the parameters 32. On the CPU the
statistics then have 32, as the parameters, and the gradient of the input 16, as the input. Grouped products, of which
mixtures of experts are made: the kernel of the CPU takes 32 bits as well, the fake one bfloat16 alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._ops import OpOverload

_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Positions of the input, of the parameters, and of the results that are of the parameters' or the input's type."""

    input: int
    parameters: tuple[int, ...]
    like_parameters: tuple[int, ...] = ()
    like_input: tuple[int, ...] = ()


MIXED: Mapping[OpOverload, Mixed] = {
    torch.ops.aten.native_batch_norm.default: Mixed(0, (1, 2, 3, 4), like_parameters=(1, 2)),
    torch.ops.aten.native_layer_norm.default: Mixed(0, (2, 3), like_parameters=(1, 2)),
    torch.ops.aten.native_group_norm.default: Mixed(0, (1, 2), like_parameters=(1, 2)),
    torch.ops.aten.native_group_norm_backward.default: Mixed(1, (4,), like_input=(0,)),
}


GROUPED = torch.ops.aten._grouped_mm.default


def as_bfloat16(item: object) -> object:
    """Return a fake tensor of the same layout in bfloat16; anything else, and numbers of no fraction, as they are."""
    if not isinstance(item, Tensor) or not item.is_floating_point():
        return item
    return torch.empty_strided(item.shape, item.stride(), dtype=torch.bfloat16, device=item.device)


def in_mixed_precision(func: OpOverload, args: Sequence[object], returned: Sequence[object]) -> tuple[object, ...]:
    """Return the fake results of `func`, one of `MIXED`, in the types that its kernel gives them."""
    rule = MIXED[func]
    x = args[rule.input]
    types = {p.dtype for at, p in enumerate(args) if at in rule.parameters and isinstance(p, Tensor)}
    results = list(returned)
    if not isinstance(x, Tensor) or x.device.type != "cpu" or x.dtype not in _HALVES or torch.float32 not in types:
        return tuple(results)
    for positions, dtype in ((rule.like_parameters, torch.float32), (rule.like_input, x.dtype)):
        for at in positions:
            result = results[at]
            if isinstance(result, Tensor) and result.dtype is not dtype:
                results[at] = torch.empty_strided(result.shape, result.stride(), dtype=dtype)
    return tuple(results)
