"""How is a workload built without memory? Under fake tensors, which have shapes and no data.

`Module.to` and its relatives exchange the parameters of a fake module by swapping tensors, which torch
refuses for tensors that somebody observes, and fake tensors always are (torch 2.13). While a workload is
built here they put the converted data into the parameter instead, as they do for real tensors. Which device a fake
tensor is on does not come with its data.
"""

from collections.abc import Callable, Mapping
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.workloads.loading import built
from outgrow.frontends.workloads.workload import Workload


def build_unallocated(function: Callable[..., Workload], settings: Mapping[str, object]) -> Workload:
    """Build a workload without memory.

    Raises `InvalidWorkload` where it cannot be built, and `Uncapturable` where the function needs the content of a
    tensor.
    """
    try:
        with FakeMode(), patch.object(nn.Module, "_apply", _apply):
            return built(function, settings)
    except Uncapturable as refusal:
        raise Uncapturable(f"To be planned, the workload is built without data. {refusal}") from refusal


def _apply(module: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Convert parameters, gradients and buffers of a module, as `nn.Module._apply` does."""
    if recurse:
        for child in module.children():
            child._apply(convert)  # some modules have one of their own
    with torch.no_grad():
        for parameter in module.parameters(recurse=False):
            _exchange(parameter, convert(parameter))
            if parameter.grad is not None:
                _exchange(parameter.grad, convert(parameter.grad))
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            setattr(module, name, convert(buffer))
    return module


def _exchange(held: Tensor, converted: Tensor) -> None:
    """Put converted data into a tensor of a module."""
    held.data = converted
    if isinstance(held, FakeTensor):
        held.fake_device = converted.device
