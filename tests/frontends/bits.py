"""When are two tensors the same to the last bit?"""

import torch
from torch import Tensor


def same_bits(found: Tensor | None, expected: Tensor | None) -> bool:
    """Whether both are missing, or have equal strides and bytes: a NaN equals itself, and -0.0 is not 0.0."""
    if found is None or expected is None:
        return found is expected
    return found.stride() == expected.stride() and torch.equal(_bytes(found), _bytes(expected))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)
