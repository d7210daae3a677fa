"""How many bytes does a recurrent layer of oneDNN keep for its backward pass? Its fake result says none, so one asks.

The kernel alone knows: the workspace is laid out by the library. So the layer runs once on memory without contents, and
only the size of what it returns is used; that takes what the layer takes anyway, and is remembered. The kernel looks at
the grad mode: without gradients it keeps nothing.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from outgrow.ir.graph import Op

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_WORKSPACE = 3
"""The place of the workspace among the results."""


def with_workspace(_func: OpOverload, args: Sequence[object], returned: object) -> tuple[object, ...]:
    """Return the fake results of `LAYER` with a workspace of the size that its kernel gives it, or None."""
    kinds = tuple((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else _frozen(x) for x in args)
    size = _workspace_bytes(kinds) if torch.is_grad_enabled() else None
    assert isinstance(returned, Sequence), "a layer has several results"
    results = list(returned)
    results[_WORKSPACE] = None if size is None else torch.empty(size, dtype=torch.uint8)
    return tuple(results)


def keeping_workspace(op: Op, function: Callable[..., object]) -> Callable[..., object]:
    """Return what runs an op whose operator is `function`: with gradients where its workspace is a result."""
    if op.operator != str(LAYER) or op.results[_WORKSPACE] is None:
        return function

    def run(*arguments: object) -> object:
        with torch.enable_grad():
            return function(*arguments)

    return run


@cache
def _workspace_bytes(kinds: tuple[object, ...]) -> int:
    arguments = [_made(kind) for kind in kinds]
    with no_dispatch(), torch.enable_grad():
        workspace = LAYER(*arguments)[_WORKSPACE]
    return 0 if workspace is None else workspace.numel()


def _frozen(item: object) -> object:
    return tuple(item) if isinstance(item, list) else item


def _made(kind: object) -> object:
    match kind:
        case (tuple() as shape, torch.dtype() as dtype):
            with no_dispatch():
                return torch.empty(shape, dtype=dtype)
        case tuple():
            return list(kind)
        case _:
            return kind
