"""Are fake results laid out as kernels lay them out? For torch's own samples of all of its operators, on any device.

    python -m tests.pretend_gpu python -m tests.pretend_gpu.layouts cuda [TYPE]
    python -m tests.pretend_gpu.layouts cpu [TYPE]

Each sample is run as it is, and with operands that are permuted (channels last, where there are four or five
dimensions), forward and backward. Type, shape, offset and the strides of dimensions of more than one element are
compared; per operator the first difference is printed. Operators whose results have as many elements as contents say
are left out. Needs the package expecttest, and NUMBA_DISABLE_CUDA=1 where the GPU is pretended.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from outgrow.frontends.fake.fakes import FakeMode

BY_CONTENT = ("empty", "linalg", "nonzero", "unique", "masked_select", "argwhere", "item", "multinomial", "histogram")
SAMPLES = 12
"""So many of each operator."""
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def main() -> None:
    """Print where results differ."""
    device, dtype = sys.argv[1], getattr(torch, sys.argv[2] if len(sys.argv) > 2 else "float32")
    compared, runs = Compared(), 0
    for info in op_db:
        if dtype in info.supported_dtypes(device) and not any(word in info.name for word in BY_CONTENT):
            for sample in samples(info, device, dtype):
                for form in (as_it_is, permuted):
                    with suppress(Exception):  # not all can be permuted
                        run(compared, info, sample, form)
                        runs += 1
    print(f"{runs} runs of samples")
    for operator, difference in sorted(compared.found.items()):
        print(f"{operator}: {difference}")


def samples(info: Any, device: str, dtype: torch.dtype) -> list[Any]:
    """Return samples of an operator; none where they cannot be made without a library that is not there."""
    with suppress(RuntimeError):
        return list(islice(info.sample_inputs(device, dtype, requires_grad=info.supports_autograd), SAMPLES))
    return []


def run(compared: "Compared", info: Any, sample: Any, form: Callable[[object], object]) -> None:
    """Run a sample with its operands in a form, forward and backward."""
    given, args, kwargs = pytree.tree_map(form, (sample.input, sample.args, sample.kwargs))
    with compared:
        results = [item for item in pytree.tree_leaves(info.op(given, *args, **kwargs)) if is_wanted(item)]
        operands = [item for item in pytree.tree_leaves((given, args, kwargs)) if is_wanted(item)]
        if results and operands:
            torch.autograd.grad(results, operands, [torch.ones_like(item) for item in results], allow_unused=True)


def is_wanted(item: object) -> bool:
    """Whether something has a gradient."""
    return isinstance(item, Tensor) and item.requires_grad


def as_it_is(item: object) -> object:
    """Return what is given."""
    return item


def permuted(item: object) -> object:
    """Return a tensor that lies in another order, if it has two dimensions or more."""
    if not isinstance(item, Tensor) or item.dim() < 2:
        return item
    kind = FORMATS.get(item.dim())
    other = item.detach().mT.contiguous().mT if kind is None else item.detach().to(memory_format=kind)
    return other.requires_grad_(item.requires_grad)


class Compared(TorchDispatchMode):
    """Repeats every operator on fake tensors, and keeps where a result first differs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        returned = func(*args, **(kwargs or {}))
        mode = FakeMode()
        with suppress(RuntimeError, ValueError):  # what has no fake result is no matter of layouts
            fakes = pytree.tree_map_only(Tensor, lambda item: mode.from_tensor(item.detach()), (args, kwargs or {}))
            with mode:
                fake = func(*fakes[0], **fakes[1])
            for one, other in zip(pytree.tree_leaves(returned), pytree.tree_leaves(fake), strict=True):
                if kind_of(one) != kind_of(other):
                    self.found.setdefault(str(func), f"{kind_of(one)}, fake {kind_of(other)}")
        return returned


def kind_of(item: object) -> object:
    """Return the type, shape, strides and offset of a tensor, and the type of anything else."""
    if not isinstance(item, Tensor):
        return type(item)
    strides = tuple(strides_that_count(item))
    return item.dtype, tuple(item.shape), strides, item.storage_offset(), item.device.type


def strides_that_count(item: Tensor) -> Iterator[int]:
    """Yield the strides of dimensions of more than one element."""
    if item.numel():
        yield from (stride for size, stride in zip(item.shape, item.stride(), strict=True) if size > 1)


if __name__ == "__main__":
    main()
