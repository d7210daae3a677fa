"""Which way would torch go in eager? Where it sees that it is traced it goes another one, with other bits.

    autocast    its cache is off while make_fx traces: a weight that is used twice would be cast twice, and the two
                gradients summed in 32 bits, where eager sums them in the lower precision
    attention   in evaluation mode fused kernels are avoided where a tensor has functions of its own, as every tensor
                seems to have while Python modes are active

While the step itself is traced, torch is told what it would find in eager.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.modules import activation

_NONE = torch._C._disabled_torch_function_impl


@contextmanager
def as_in_eager(*, caches_casts: bool) -> Iterator[None]:
    """Let torch go the ways of eager; autocast keeps casts if it does so there."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(caches_casts)
    try:
        with (
            patch.object(torch.overrides, "has_torch_function", _has_own_functions),
            patch.object(activation, "_is_make_fx_tracing", lambda: False),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _has_own_functions(tensors: Iterable[object]) -> bool:
    """Whether one of them is of a type with functions of its own; active modes and fake twins do not count."""
    kinds = {type(tensor) for tensor in tensors} - {Tensor}
    return any(getattr(kind, "__torch_function__", _NONE) is not _NONE for kind in kinds)
