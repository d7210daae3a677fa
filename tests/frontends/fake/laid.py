"""How do the results of operators, and their gradients, lie: as kernels lay them, and as a trace says?"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from outgrow.frontends.fake.fakes import fake_mode

Way: TypeAlias = Callable[[Tensor], Tensor]
Strides: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Those of a result, and of a gradient."""


def strides(way: Way, x: Tensor, arriving: Tensor) -> Strides:
    """Those of what a way makes of `x`, and of the gradient of `x` where `arriving` arrives."""
    x = x.detach().requires_grad_()
    result = way(x)
    (gradient,) = torch.autograd.grad(result, x, arriving.to(result.dtype))
    return result.stride(), gradient.stride()


def said(way: Way, x: Tensor, arriving: Tensor) -> Strides:
    """The same, where nothing is computed."""
    with fake_mode(()) as mode:
        fakes = [mode.from_tensor(item, static_shapes=True) for item in (x, arriving)]
        with mode:
            return strides(way, *fakes)
