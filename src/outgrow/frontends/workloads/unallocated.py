"""How is a workload built without memory? Under fake tensors, which have shapes and no data.

`Module.to` and its relatives exchange the parameters of a fake module by swapping tensors, which torch
refuses for tensors that somebody observes, and fake tensors always are (torch 2.13). While a workload is
built here they put the converted data into the parameter instead, as they do for real tensors; where a real one of
its device could not take them, such as one of the meta device, the module gets a new parameter. Which device a fake
tensor is on does not come with its data. Literals on the meta device (`torch.tensor(0, device="meta")`) are no fake
tensors in torch (2.13), and are exchanged for fake ones.
"""

from collections.abc import Callable, Mapping, Sequence
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch import _has_compatible_shallow_copy_type as _takes_data  # pyright: ignore[reportPrivateImportUsage]
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

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
        with FakeMode(), _MetaLiterals(), patch.object(nn.Module, "_apply", _apply):
            return built(function, settings)
    except Uncapturable as refusal:
        raise Uncapturable(f"To be planned, the workload is built without data. {refusal}") from refusal


class _MetaLiterals(TorchFunctionMode):
    """Exchanges real tensors of the meta device, which have no contents either, for fake ones."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        if type(made) is not Tensor or made.device.type != "meta":
            return made
        form = made.size(), made.stride()
        return torch.empty_strided(*form, dtype=made.dtype, device="meta", requires_grad=made.requires_grad)


def _apply(module: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Convert parameters, gradients and buffers of a module, as `nn.Module._apply` does."""
    if recurse:
        for child in module.children():
            child._apply(convert)  # some modules have one of their own
    with torch.no_grad():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            converted = convert(parameter)
            if not _takes_data(parameter, converted):
                setattr(module, name, nn.Parameter(converted, parameter.requires_grad))
                continue
            _exchange(parameter, converted)
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
