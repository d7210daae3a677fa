"""Which tensors share memory? Those of one storage; what is no plain memory `address` refuses, `place` lets pass.

Whoever writes to memory beside torch's operators says so to autograd (`raise_versions`).
"""

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from outgrow.errors import Uncapturable

Geometry: TypeAlias = tuple[object, ...]
_PLAIN = (Tensor, torch.nn.Parameter)
ZEROS = (
    "makes zeros without memory, as the derivative of sgn(), a second one of abs(), and derivatives in forward mode "
    "(jvp) do; plans hold tensors with memory only. Write x.sgn() as x.sign(), and x.abs() as x * x.detach().sign(), "
    "or leave this to eager mode, outside of the step"
)


def address(tensor: Tensor) -> int:
    """Return what tensors of one storage have in common.

    Raises `Uncapturable` for a tensor that is not plain memory.
    """
    if tensor._is_zerotensor():
        raise Uncapturable(f"the step {ZEROS}")
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        raise Uncapturable(
            f"the step has a sparse, quantized or lazily conjugated tensor of shape {tuple(tensor.shape)}; "
            "plans hold dense tensors only. Make it dense (sparse=False, dequantize, resolve_conj)"
        )
    return tensor.untyped_storage()._cdata


def place(tensor: Tensor) -> int:
    """Return what tensors of one storage have in common; a sparse tensor shares with nobody."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def geometry(tensor: Tensor) -> Geometry:
    """Return how a tensor lies in which memory, and how large that is."""
    storage = tensor.untyped_storage()
    return (tensor.shape, tensor.stride(), tensor.storage_offset(), storage.nbytes(), storage._cdata)


def raise_versions(items: Iterable[object]) -> None:
    """Raise the versions of what is a tensor, so that autograd sees that it was written."""
    tensors = [item for item in items if isinstance(item, Tensor) and not item.is_inference()]
    torch.autograd.graph.increment_version(tensors)


def overlap(one: object, other: object) -> bool:
    """Whether tensors share memory, also if each has a storage of its own over it, as two made of one NumPy array."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.device != other.device:
        return False
    if place(one) == place(other):
        return True
    if not all(type(item) in _PLAIN and item.layout is torch.strided for item in (one, other)):
        return False
    (begin, end), (first, last) = map(_range, (one, other))
    return begin < last and first < end


def _range(tensor: Tensor) -> tuple[int, int]:
    """Where the memory of a tensor begins and ends."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
