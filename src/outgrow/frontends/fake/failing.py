"""What does an operator return whose abstract implementation fails, though its kernel does not?

over no elements     means divide by zero, as the gradients of losses of an empty batch do, and sizes are asked for
                     otherwise: the operator costs nothing, so it is run on memory without elements
in complex numbers   some implementations in place know real ones alone, where those that make a new tensor know
                     both (`nan_to_num_`): what is written is returned
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only

from outgrow.frontends.fake.ambiguous import may_run, zeros
from outgrow.frontends.fake.arguments import exchanged, leaves_of, tensors_of, writes

FAILURES = (RuntimeError, TypeError, ZeroDivisionError)


def returned_after_all(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object | None:
    """Return the fake results of `func`, whose abstract implementation has failed; None where its kernel would as well.

    Fakes are made anew for it, so the mode of fake tensors must be on.
    """
    operands = tensors_of(leaves_of(args, kwargs))
    if writes(func):
        return args[0] if any(map(torch.is_complex, operands)) and _is_made_anew(func, args, kwargs) else None
    if all(item.numel() for item in operands) or not may_run(func, leaves_of(args, kwargs), operands):
        return None
    with no_dispatch():
        own, named = exchanged((tuple(args), dict(kwargs)), zeros)
        try:
            found = func(*own, **named)
        except FAILURES:
            return None
    return tree_map_only(Tensor, _without_content, found)


def _is_made_anew(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether the operator that makes a new tensor, instead of writing the first operand, makes one like that."""
    name, first = func._schema.name.removeprefix("aten::"), args[0]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    if packet is None or not isinstance(first, Tensor):
        return False
    try:
        found = packet(*args, **kwargs)
    except FAILURES:
        return False
    return isinstance(found, Tensor) and (found.shape, found.dtype) == (first.shape, first.dtype)


def _without_content(made: Tensor) -> Tensor:
    return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=made.device)
