"""How many bytes does cuDNN keep of a batch normalisation for its backward pass? Its fake result says none.

As for recurrent layers (`frontends.recurrent`) the library alone knows, so one asks: the operator runs once on memory
without contents, which takes what it takes anyway, and the size of what it returns is remembered.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

NORM = torch.ops.aten.cudnn_batch_norm.default
_RESERVE = 3
"""The place of what is kept among the results."""


def with_reserve(_func: OpOverload, args: Sequence[object], returned: object) -> tuple[object, ...]:
    """Return the fake results of `NORM` with as much kept as its kernel keeps."""
    assert isinstance(returned, Sequence), "a normalisation has several results"
    results = list(returned)
    size = reserve_bytes(tuple(map(_kind, args)))
    results[_RESERVE] = torch.empty(size, dtype=torch.uint8, device=results[0].device)
    return tuple(results)


@cache
def reserve_bytes(kinds: tuple[object, ...]) -> int:
    """Return what the kernel keeps, of arguments of these kinds: numbers, and layouts of tensors."""
    with no_dispatch(), torch.no_grad():
        return NORM(*map(_made, kinds))[_RESERVE].numel()


def _kind(item: object) -> object:
    return (tuple(item.shape), item.stride(), item.dtype, item.device) if isinstance(item, Tensor) else item


def _made(kind: object) -> object:
    if not isinstance(kind, tuple):
        return kind
    shape, strides, dtype, device = kind
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)
