"""Which strides does an elementwise result have? Those of the same operator on small operands, which is run to see.

An elementwise kernel (torch's TensorIterator) orders the dimensions of its result by the strides of all operands, and
by which of them are broadcast; sizes do not count, but for those of 1. So where operands are not all contiguous, the
operator is run on zeros with two elements in each dimension, whose strides are in the same order. If that result is
dense, the whole one is dense in the same order of dimensions. Operators that are told dimensions, sizes or shifts are
left as they are, and so are those that do not take smaller operands, or make other shapes of them.

Where strides tie, or there is no kernel here, a result of two operands of one dtype lies as their sum would in fp32: in
half precision abstract implementations first convert the operands, and the copies are no longer broadcast.

The dtype of a result whose operands have several is found in the same way: some losses have that of their predictions,
others the promoted one.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeAlias

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from outgrow.frontends.fake.arguments import Form, leaves_of, tensors_of, writes
from outgrow.frontends.fake.kernels.asked import can_run, forms_given
from outgrow.frontends.fake.kernels.layouts import relaid, without_memory
from outgrow.frontends.fake.kernels.precision import retyped
from outgrow.frontends.user.training.sharing import address
from outgrow.ir.layout import dense_strides, order_of

_Order: TypeAlias = tuple[int, ...]
"""Dimensions, the innermost last."""
_UNTAGGED = (torch.ops.aten.complex.default, torch.ops.aten.polar.default)
"""Operators that go through operands element by element, beside those that torch calls element-wise."""
_NO_PLACES = ("reduction",)
"""Whole numbers of this name are neither dimensions nor sizes, nor by how many places something is moved."""


def as_smaller_ones(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], returned: object) -> object:
    """Return the fresh fake results of `func` in the order that its kernel gives to results of smaller operands.

    Fakes are made anew for it, so the mode of fake tensors must be on.
    """
    operands, results = tensors_of(leaves_of(args, kwargs)), tensors_of(leaves_of(returned))
    is_by_places = _is_by_places(operands, results)
    if is_by_places and (not can_run(operands) or any(map(_has_ties, operands))):
        returned = _as_their_sum(func, operands, returned)
        is_by_places = False
    if not (is_by_places or _is_of_several_types(operands)) or not (_is_pure(func) and can_run(operands)):
        return returned
    forms = forms_given(func, args, kwargs, _smaller)
    if forms is None or len(forms) != len(results):
        return returned
    orders = _orders(forms, [_smaller(item).shape for item in results]) if is_by_places else None
    made, known = iter(zip(forms, orders or [None] * len(forms), strict=True)), set(map(address, operands))

    def laid(result: Tensor) -> Tensor:
        form, order = next(made)
        strides = result.stride() if order is None else dense_strides(result.shape, order)
        return result if address(result) in known else retyped(relaid(result, strides), form.dtype)

    return pytree.tree_map_only(Tensor, laid, returned)


def _as_their_sum(func: OpOverload, operands: Sequence[Tensor], returned: object) -> object:
    """Return the fake result of two operands, element by element, with the strides of their sum."""
    is_of_elements = torch.Tag.pointwise in func.tags or func in _UNTAGGED
    if len(operands) != 2 or operands[0].dtype != operands[1].dtype or not is_of_elements or writes(func):
        return returned
    assert isinstance(returned, Tensor), "it has one result"
    with no_dispatch():
        one, other = (without_memory(operand, torch.float32) for operand in operands)
        strides = (one + other).stride()
    return relaid(returned, strides)


def _is_of_several_types(operands: Sequence[Tensor]) -> bool:
    """Whether operands are numbers of several precisions."""
    if any(item.layout is not torch.strided for item in operands):
        return False
    return len({item.dtype for item in operands if item.is_floating_point()}) > 1


def _is_by_places(operands: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
    """Whether results have the shape that operands have together, and not all are contiguous and of that shape."""
    if not operands or not results or any(item.layout is not torch.strided for item in (*operands, *results)):
        return False
    shape = results[0].shape
    if len(shape) < 2 or any(item.shape != shape for item in results) or not shape.numel():
        return False
    several = [item for item in operands if item.dim() > 0]
    if all(item.shape == shape and item.is_contiguous() for item in (*several, *results)):
        return False
    try:
        return torch.broadcast_shapes(*(item.shape for item in operands)) == shape
    except RuntimeError:
        return False


def _has_ties(tensor: Tensor) -> bool:
    """Whether dimensions have one stride, or those of a smaller tensor would: kernels go by their sizes then.

    Windows that overlap may have one, and dimensions of one place, which take no room in a smaller tensor.
    """
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and stride]
    return len(set(strides)) < len(strides) or len(set(_smaller(tensor).strides)) < len(set(tensor.stride()))


@cache
def _is_pure(func: OpOverload) -> bool:
    """Whether an operator makes new tensors of others and does nothing else, wherever their places are."""
    if func.namespace != "aten" or writes(func) or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return not any(
        "int" in str(item.real_type).lower() and item.name not in _NO_PLACES for item in func._schema.arguments
    )


def _smaller(tensor: Tensor) -> Form:
    """Return the form of a smaller tensor whose strides are in the same order, and which is dense if this one is.

    It has up to two places in each dimension.
    """
    shape = tuple([min(size, 2) for size in tensor.shape])
    pairs = [(stride, size) for stride, size in zip(tensor.stride(), shape, strict=True) if stride]
    strides = [_places(pairs, below=stride) if stride else 0 for stride in tensor.stride()]
    if not _is_dense(tensor):
        strides = [2 * stride for stride in strides]
    return Form(shape, tuple(strides), tensor.dtype, tensor.device)


def _places(pairs: Sequence[tuple[int, int]], *, below: int) -> int:
    """Return how many places the dimensions of smaller strides have."""
    found = 1
    for stride, size in pairs:
        found *= size if stride < below else 1
    return found


def _is_dense(tensor: Tensor) -> bool:
    """Whether the places of a tensor, each counted once if it repeats them, follow each other without a gap."""
    pairs = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if stride)
    expected = 1
    for stride, size in pairs:
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _orders(forms: Sequence[Form], shapes: Sequence[tuple[int, ...]]) -> list[_Order] | None:
    """Return the order of each result's dimensions; None if one is not dense, or they are not of these shapes."""
    if [form.shape for form in forms] != shapes:
        return None
    orders = [order_of(form.shape, form.strides) for form in forms]
    is_dense = all(dense_strides(form.shape, order) == form.strides for form, order in zip(forms, orders, strict=True))
    return orders if is_dense else None
