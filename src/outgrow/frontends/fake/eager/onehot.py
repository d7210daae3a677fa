"""How are one-hot vectors made? In eager mode by zeros in which the ones are written, which are contiguous.

While torch is traced it compares classes with a range of numbers instead: the result lies as the classes do, sums over
it round otherwise, and a class that there is not goes unnoticed.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_one_hot: Callable[..., Tensor] = F.one_hot


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Return what `torch.nn.functional.one_hot` returns; writing the ones fails for a class that there is not.

    >>> one_hot(torch.tensor([1, 0]), 3)
    tensor([[0, 1, 0],
            [1, 0, 0]])
    """
    if num_classes < 0 or tensor.numel() == 0 or tensor.dtype is not torch.int64:
        return _one_hot(tensor, num_classes)
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)
