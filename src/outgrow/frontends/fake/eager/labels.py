"""May numbers of classes be bytes? Eager mode takes them, one a row; tensors without contents ask for 64 bits.

So while a step is traced they are widened before the loss is taken, which has the same bits. A map of numbers has to
have 64 bits in eager mode, too.
"""

from typing import Any

import torch
from torch import Tensor

OPERATORS: Any = vars(torch._C)["_nn"]
"""Where torch looks up `cross_entropy_loss` and `nll_loss_nd`."""
_nll_loss: Any = OPERATORS.nll_loss_nd


def widened(scores: Tensor, target: Tensor) -> Tensor:
    """Return the numbers of classes of scores, of 64 bits where eager mode takes bytes."""
    return target.long() if target.dtype is torch.uint8 and scores.dim() <= 2 else target


def nll_loss(input: Tensor, target: Tensor, *options: Any, **named: Any) -> Tensor:  # noqa: A002 - as torch names it
    """Return what torch's `nll_loss_nd` returns, of bytes as well."""
    return _nll_loss(input, widened(input, target), *options, **named)
