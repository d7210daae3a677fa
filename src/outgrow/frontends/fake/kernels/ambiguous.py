"""How does a result lie whose layout can be read in two ways? Its kernel is asked.

A tensor with one channel, or whose maps are single points, is contiguous and channels-last at once, by the strides of
its dimensions of size 1; one that got such a dimension by `unsqueeze` may be channels-last but for that. Kernels go by
either format, abstract implementations by other ones, and the kernels of what follows read a format off these strides:
padding gives its result another layout, the gradient of a batch normalisation is summed in another order. So an
operator on such tensors, which are small, is run on zeros that lie as its operands do.

A view gets strides in dimensions of size 1, too, by which products of matrices go: those that torch computes without
memory are asked for in place of those of the abstract implementation (`as_viewed`).
"""

from collections.abc import Mapping, Sequence

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from outgrow.frontends.fake.arguments import leaves_of, tensors_of, writes
from outgrow.frontends.fake.kernels.asked import can_run, forms_given
from outgrow.frontends.fake.kernels.layouts import FORMATS, channels_last_strides, relaid, without_memory
from outgrow.frontends.fake.looks.literals import is_deterministic
from outgrow.frontends.user.training.sharing import address

_MOST_BYTES = 4 << 20
"""Operands and results of more are not made; how they lie is left to the abstract implementation."""
_CONVOLUTIONS = (
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
)
"""Slow ones, whose abstract implementations are right; a weight of one point makes every other one ambiguous."""


def is_ambiguous(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous and channels-last at once, or channels-last but for dimensions of size 1."""
    if tensor.dim() not in FORMATS or 1 not in tensor.shape or tensor.layout is not torch.strided:
        return False
    if not tensor.is_contiguous(memory_format=FORMATS[tensor.dim()]):
        return False
    return tensor.is_contiguous() or tensor.stride() != channels_last_strides(tuple(tensor.shape))


def as_the_kernel_lays(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], returned: object
) -> object:
    """Return the fake results of `func` with the strides that its kernel gives, where one of its layouts is ambiguous.

    Fakes are made anew for it, so the mode of fake tensors must be on.
    """
    leaves = leaves_of(args, kwargs)
    operands, results = tensors_of(leaves), tensors_of(leaves_of(returned))
    tensors = (*operands, *results)
    if not any(map(is_ambiguous, tensors)) or not may_run(func, leaves, tensors):
        return returned
    forms = forms_given(func, args, kwargs)
    if forms is None or len(forms) != len(results):
        return returned
    found = iter(forms)
    known = set(map(address, operands))

    def laid(result: Tensor) -> Tensor:
        strides = next(found).strides
        return result if address(result) in known else relaid(result, strides)

    return pytree.tree_map_only(Tensor, laid, returned)


VIEWED = frozenset((torch.ops.aten.view.default,))


def as_viewed(_func: OpOverload, args: Sequence[object], returned: object) -> object:
    """Return a fake view, by one of `VIEWED`, with the strides that torch computes for it."""
    assert isinstance(returned, Tensor), "a view is a tensor"
    if 1 not in returned.shape:
        return returned
    operand, shape = args
    assert isinstance(operand, Tensor), "a view is one of a tensor"
    with no_dispatch():
        strides = without_memory(operand, operand.dtype).view(shape).stride()
    if strides == returned.stride():
        return returned
    return torch.ops.aten.as_strided.default(returned, returned.shape, strides, returned.storage_offset())


def may_run(func: OpOverload, leaves: Sequence[object], tensors: Sequence[Tensor]) -> bool:
    """Whether an operator makes new tensors of others, does nothing else, and all are small."""
    if func.namespace != "aten" or func in _CONVOLUTIONS or writes(func) or not is_deterministic(func, leaves):
        return False
    return can_run(tensors) and sum(item.nbytes for item in tensors) <= _MOST_BYTES
