"""What have all workloads in common? The ordinary step, a precision, a layout, an optimizer, a batch.

    forward and loss, under autocast for a dtype of 16 bits
    backward
    the optimizer's step, tensor by tensor
    gradients dropped

The optimizer's state is there from the start, as the zeros that its first step would make. So the step that is
captured is the one that all later steps repeat. Convolutions are laid out channels-last. Weights stay in
float32 in any precision; with float16 the loss is not scaled, which moves no bytes and adds no operator of any
size.

The functions of a workload file only say what is trained. They make parameters and batches by the usual calls
of torch, so under fake tensors nothing is allocated.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from outgrow import Workload

_SIXTEEN_BITS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def minimised(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[..., Tensor],
    batch: tuple[Tensor, ...],
    dtype: str = "float32",
) -> Workload:
    """Return the training that minimises `loss(*batch)`; raises `ValueError` for an unknown dtype."""
    autocast = precision(dtype)

    def step(*batch: Tensor) -> Tensor:
        with autocast():
            value = loss(*batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    return Workload(model, optimizer, step, [batch])


def precision(dtype: str) -> Callable[[], AbstractContextManager[object]]:
    """Return what makes the context of forward and loss; raises `ValueError` for an unknown dtype."""
    if dtype == "float32":
        return nullcontext
    chosen = _SIXTEEN_BITS[known("dtype", dtype, ("float32", *_SIXTEEN_BITS))]
    return lambda: torch.autocast("cpu", dtype=chosen)


def known(what: str, chosen: str, choices: tuple[str, ...]) -> str:
    """Return `chosen`; raises `ValueError`, listing the choices, if it is none of them."""
    if chosen not in choices:
        raise ValueError(f"{what} {chosen!r} is unknown. Choose one of: {', '.join(choices)}.")
    return chosen


def sgd(model: nn.Module, lr: float = 0.1) -> Optimizer:
    """Return stochastic gradient descent with momentum 0.9."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, foreach=False)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def adam(model: nn.Module, lr: float = 1e-3) -> Optimizer:
    """Return Adam (Kingma and Ba 2015)."""
    return _with_moments(torch.optim.Adam(model.parameters(), lr=lr, foreach=False))


def adamw(model: nn.Module, lr: float = 1e-4) -> Optimizer:
    """Return Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""
    return _with_moments(torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, foreach=False))


def _with_moments(optimizer: Optimizer) -> Optimizer:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.zeros(()), **moments}
    return optimizer


def channels_last(model: nn.Module) -> nn.Module:
    """Lay out the weights of all convolutions channels-last, in place, and return the model."""
    for parameter in model.parameters():
        if parameter.dim() in _CHANNELS_LAST:
            weight = torch.empty_like(parameter, memory_format=_CHANNELS_LAST[parameter.dim()])
            parameter.data = weight.copy_(parameter.data)
    return model


def pictures(batch: int, channels: int, *sides: int) -> Tensor:
    """Return a batch of noise, channels-last: pictures of two sides, or volumes of three."""
    noise = torch.randn(batch, channels, *sides)
    return noise.contiguous(memory_format=_CHANNELS_LAST[noise.dim()])
