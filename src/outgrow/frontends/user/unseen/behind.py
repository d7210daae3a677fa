"""What does a step return of which autograd knows how it was made? In eager mode a gradient would go on behind it.

In a captured step what is behind is not there once the step is over. So it returns a tensor that says so when it is
asked for: without a graph, a term that is added outside of the step would silently miss that part of its gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from outgrow.errors import Uncapturable
from outgrow.frontends.user.lines import present_line


def with_nothing_behind(item: Tensor) -> Tensor:
    """Return a tensor in the same memory that requires a gradient, of which nothing behind it can have one."""
    return _Ended.apply(torch.empty(0, requires_grad=True), item)


class _Ended(torch.autograd.Function):
    """Raises where a gradient arrives. What it returns is no view, so it can be written in place."""

    @staticmethod
    def forward(_context: Any, _wants_gradient: Tensor, item: Tensor) -> Tensor:
        alike = torch.empty(0, dtype=item.dtype, device=item.device)
        return alike.set_(item.untyped_storage(), item.storage_offset(), item.shape, item.stride())

    @staticmethod
    @once_differentiable
    def backward(_context: Any, _gradient: Tensor) -> None:
        raise Uncapturable(
            f"{present_line()}: a backward pass goes back into a compiled step that is over; call backward() in the "
            "function that is given to outgrow.compile, which plans what runs in it"
        )
