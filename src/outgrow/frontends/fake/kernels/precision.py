"""Which type does a result really have, where the fake operator gives another one, or refuses?

Normalisations in mixed precision: under autocast the input has 16 bits a number and the parameters 32. On the CPU the
statistics then have 32 bits, like the parameters, and the gradient of the input 16, like the input. Grouped products,
as in mixtures of experts: the kernel of the CPU also takes 32 bits, the fake operator only bfloat16. Attention on the
CPU: for numbers of 64 bits its sums have 64 bits, those of the fake operator 32 (torch 2.11). Recurrent layers of
oneDNN: all their gradients have 32 bits, those of the fake operator as many as the input (torch 2.11), and those of
the two biases are two, where the fake operator gives one twice, unless torch has kept how they look. Bags of
embeddings on the CPU: of their indices as much is kept in bfloat16 as in float16, of which alone the fake one knows;
and of frozen ones other sizes, where the last offset ends the last bag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class _Mixed:
    """Positions of the input and the parameters, and of the results that have the parameters' or the input's type."""

    input: int
    parameters: tuple[int, ...]
    like_parameters: tuple[int, ...] = ()
    like_input: tuple[int, ...] = ()


_MIXED: Mapping[OpOverload, _Mixed] = {
    torch.ops.aten.native_batch_norm.default: _Mixed(0, (1, 2, 3, 4), like_parameters=(1, 2)),
    torch.ops.aten.native_layer_norm.default: _Mixed(0, (2, 3), like_parameters=(1, 2)),
    torch.ops.aten.native_group_norm.default: _Mixed(0, (1, 2), like_parameters=(1, 2)),
    torch.ops.aten.native_group_norm_backward.default: _Mixed(1, (4,), like_input=(0,)),
}

_GROUPED = torch.ops.aten._grouped_mm.default
_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FROZEN, _MODE, _HAS_END, _SUM = torch.ops.aten._embedding_bag_forward_only.default, 4, 7, 0
"""Bags of weights that are not trained; where it is told what is made of a bag, and whether the last offset ends it."""
_LAYER_GRADIENTS = torch.ops.aten.mkldnn_rnn_layer_backward.default
_BAGS = frozenset((torch.ops.aten._embedding_bag.default, _FROZEN))

RETYPED = frozenset((_GROUPED,))
"""Operators whose fake ones refuse types that kernels take."""
TYPED = frozenset((*_MIXED, *_BAGS, _GROUPED, _ATTENTION, _LAYER_GRADIENTS))
"""Operators whose kernels give other types than their fake ones."""


def as_fakes_take(args: Sequence[object]) -> tuple[object, ...]:
    """Return the arguments of an operator of `RETYPED` in types that the fake operator takes."""
    return tuple(retyped(arg, torch.bfloat16) if _is_single(arg) else arg for arg in args)


def as_kernels_type(func: OpOverload, args: Sequence[object], returned: object) -> object:
    """Return the fake results of `func`, one of `TYPED`, in the types that its kernel gives them."""
    if func is _GROUPED:
        return retyped(returned, torch.float32) if _is_single(args[0]) else returned
    assert isinstance(returned, Sequence), "attention, recurrent layers, bags and normalisations have several results"
    if func in _BAGS:
        found = (returned[0], *func(*_as_halves(args))[1:]) if _is_brief(args[0]) else returned
        return _frozen(args, found) if func is _FROZEN else found
    if func is _LAYER_GRADIENTS:
        return tuple(_made_anew(item, torch.float32) for item in returned)
    if func is _ATTENTION:
        attention, sums = returned
        return attention, retyped(sums, torch.float64) if attention.dtype is torch.float64 else sums
    rule = _MIXED[func]
    x = args[rule.input]
    types = {p.dtype for at, p in enumerate(args) if at in rule.parameters and isinstance(p, Tensor)}
    if not isinstance(x, Tensor) or x.device.type != "cpu" or x.dtype not in _HALVES or torch.float32 not in types:
        return returned
    kernels = dict.fromkeys(rule.like_parameters, torch.float32) | dict.fromkeys(rule.like_input, x.dtype)
    return tuple(retyped(item, kernels[at]) if at in kernels else item for at, item in enumerate(returned))


def _frozen(args: Sequence[object], returned: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the results for bags of frozen weights: where the last offset ends the last bag, others are as long."""
    bags, places, sizes, largest = returned
    offsets = args[2]
    assert isinstance(offsets, Tensor), "the third operand is where bags begin"
    if offsets.device.type != "cpu" or not (len(args) > _HAS_END and args[_HAS_END]):
        return returned
    if args[_MODE] == _SUM:
        return bags, places, sizes, largest.new_empty(offsets.shape[0])
    return bags, places, sizes.new_empty(offsets.shape[0] - 1), largest


def _as_halves(args: Sequence[object]) -> tuple[object, ...]:
    return tuple(retyped(arg, torch.float16) if _is_brief(arg) else arg for arg in args)


def _is_brief(item: object) -> bool:
    return isinstance(item, Tensor) and item.dtype is torch.bfloat16 and item.device.type == "cpu"


def _is_single(item: object) -> bool:
    return isinstance(item, Tensor) and item.dtype is torch.float32 and item.device.type == "cpu"


def retyped(item: Any, dtype: torch.dtype) -> Any:
    """Return a fake tensor of the same layout in another type; what is no tensor is returned as it is."""
    return item if not isinstance(item, Tensor) or item.dtype is dtype else _made_anew(item, dtype)


def _made_anew(item: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(item.shape, item.stride(), dtype=dtype, device=item.device)
