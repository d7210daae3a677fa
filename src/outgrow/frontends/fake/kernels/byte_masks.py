"""May a mask be bytes? Eager mode takes one (`x[mask]`, `torch.where`); without contents torch refuses it.

So while a step is traced, a mask of bytes becomes one of booleans, which are true where bytes are not zero: the same
places are chosen. Eager mode warns that such masks are deprecated; a plan does not.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
_MASKED_AT: Mapping[OpOverload, int] = {
    aten.where.self: 0,
    aten.index.Tensor: 1,
    aten._unsafe_index.Tensor: 1,
    aten.index_put.default: 1,
    aten.index_put_.default: 1,
    aten._unsafe_index_put.default: 1,
    aten._index_put_impl.default: 1,
    aten._index_put_impl_.default: 1,
}
"""Operators that take masks, and which of their arguments is one, or a list with some."""


def _by_booleans(func: OpOverload, at: int, *args: object, **kwargs: object) -> object:
    masks = pytree.tree_map_only(Tensor, _as_booleans, args[at])
    return func(*args[:at], masks, *args[at + 1 :], **kwargs)


def _as_booleans(item: Tensor) -> Tensor:
    return item.ne(0) if item.dtype is torch.uint8 else item


BY_BOOLEANS: Mapping[OpOverload, Callable[..., object]] = {
    func: partial(_by_booleans, func, at) for func, at in _MASKED_AT.items()
}
"""What is called in place of operators that take masks."""
