"""What are the results of an op, and how do they lie in the memory that was planned for them? As captured, no larger.

A kernel may return a tensor in larger memory: a loss that keeps all that it was summed from. No plan counts that.
"""

from collections.abc import Sequence
from typing import Any

import torch

from outgrow.runtime.program import Geometry


def results_of(returned: object) -> Sequence[Any]:
    """Return what an op returned, one result or several, one after the other."""
    return returned if isinstance(returned, tuple | list) else (returned,)


def compact(item: torch.Tensor, geometry: Geometry, size_bytes: int) -> torch.Tensor:
    """Return a result that holds no more memory than was planned: a loss may keep all that it was summed from."""
    if not is_oversized(item, size_bytes):
        return item
    room = torch.empty(size_bytes, dtype=torch.uint8, device=item.device)
    return copied_to(room.untyped_storage(), item, geometry)


def is_oversized(item: torch.Tensor, size_bytes: int) -> bool:
    """Whether a result holds more memory than was planned, which no plan counts."""
    return item.untyped_storage().nbytes() > size_bytes


def copied_to(storage: torch.UntypedStorage, item: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return a result copied into a storage, laid out as was captured."""
    return fill(geometry.over(storage), item)


def fill(tensor: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
    """Copy an item into a tensor that lies like it: along a stride of 0 there is only one number."""
    if 0 not in tensor.stride():
        return tensor.copy_(item)
    firsts = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    tensor[firsts].copy_(item[firsts])
    return tensor
