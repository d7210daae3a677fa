"""Which operators do the same with each tensor of lists, and do all get the kernel that they would get alone?

    aten._foreach_add_.List([p, q], [g, h])   =   aten._foreach_add_.List([p], [g])
                                                  aten._foreach_add_.List([q], [h])

Torch goes through its lists one tensor after the other, and a kernel of a GPU that takes many computes each element by
itself, so the bits are the same. But which kernel a GPU takes is asked of a list as a whole, and fused optimizers
refuse lists of several types there.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

OPTIMIZERS = ("adam_", "adamw_", "sgd_", "adagrad_")
"""Fused optimizers, as the operators that take any rate are named."""
_ASKED_AS_A_WHOLE = "aten::_foreach_"
_ON_LISTS = (_ASKED_AS_A_WHOLE, "aten::_fused_", "aten::_amp_foreach_", *(f"outgrow::{name}" for name in OPTIMIZERS))
"""How the names of operators begin that do the same with each tensor of a list; a few others begin so, too."""
_OF_ALL = "scalars"
"""A tensor of this name has a number for each tensor of the lists."""


def schema_of(func: OpOverload) -> torch.FunctionSchema:
    """Return what torch says of an operator's arguments and results."""
    return func._schema  # noqa: SLF001 - it has no public name


def is_on_lists(func: OpOverload) -> bool:
    """Whether an operator does the same with each tensor of its lists, and returns nothing, or a list of tensors."""
    schema = schema_of(func)
    if not func.name().startswith(_ON_LISTS) or len(schema.returns) > 1:
        return False
    first, *others = schema.arguments
    is_of_all = any(item.name == _OF_ALL and str(item.type) == "Tensor" for item in others)
    return str(first.type) == "List[Tensor]" and not is_of_all


def lists_and_others(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[dict[str, list[object]], dict[str, object]]:
    """Return, by name, the arguments of a call that are lists and not empty, and the others."""
    arguments = schema_of(func).arguments
    given = dict(zip([item.name for item in arguments], args, strict=False)) | dict(kwargs)
    of_lists = {item.name for item in arguments if str(item.type).startswith("List[")}
    lists = {name: items for name, items in given.items() if name in of_lists and isinstance(items, list) and items}
    return lists, {name: item for name, item in given.items() if name not in lists}


def get_one_kernel(func: OpOverload, calls: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the tensors of calls get by themselves the kernel that they get together."""
    first = calls[0][0]
    if first.device.type == "cpu":
        return True
    if not func.name().startswith(_ASKED_AS_A_WHOLE):
        return len({tuple(item.dtype for item in tensors) for tensors in calls}) == 1
    return len({_is_uniform(tensors, first) for tensors in calls}) == 1


def _is_uniform(tensors: Sequence[Tensor], first: Tensor) -> bool:
    """Whether tensors that belong together lie alike, without gaps, and are of the type and device of the first."""
    own = tensors[0]
    return all(
        (item.dtype, item.device, item.shape, item.stride()) == (first.dtype, first.device, own.shape, own.stride())
        and _is_dense(item)
        for item in tensors
    )


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor lie side by side, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
