"""Who asks for singular values, or eigenvalues, and for no vectors? Eager mode computes no vectors for them then.

LAPACK finds values alone by another algorithm than with their vectors, with other last bits. Torch computes vectors as
well where a gradient is wanted, and also where Python modes are active, as while a step is traced.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_WITH_VECTORS: Mapping[OpOverload, str] = {
    torch.ops.aten._linalg_svd.default: "compute_uv",
    torch.ops.aten._linalg_eigh.default: "compute_v",
}
"""Operators, and their third argument, which says whether vectors are wanted."""


class _WithoutVectors(TorchDispatchMode):
    """Asks for no vectors."""

    def __torch_dispatch__(
        self, func: OpOverload, _types: Any, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        if func in _WITH_VECTORS:
            args, kwargs = args[:2], {**(kwargs or {}), _WITH_VECTORS[func]: False}
        return func(*args, **(kwargs or {}))


def values_alone(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch that computes vectors only where a gradient is wanted.

    >>> values_alone(torch.linalg.svdvals)(torch.eye(2))
    tensor([1., 1.])
    """

    @wraps(own)
    def called(*args: Any, **options: Any) -> Any:
        tensors = [item for item in (*args, *options.values()) if isinstance(item, Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return own(*args, **options)
        with _WithoutVectors():
            return own(*args, **options)

    return called


VALUES = {
    own: values_alone(own)
    for own in (
        torch.linalg.svdvals,
        torch.linalg.eigvalsh,
        torch.linalg.cond,
        torch.linalg.norm,
        torch.linalg.matrix_norm,
        torch.linalg.matrix_rank,
        torch.nuclear_norm,
        torch.norm,
        Tensor.norm,
    )
}
"""Functions of torch, and what is called in their place while a step is traced."""
