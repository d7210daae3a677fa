"""What has no content while a step is captured? Its results: tensors and numbers that it computes."""

import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types


def is_empty(value: object) -> bool:
    """Whether a value has no content while a step is captured."""
    return isinstance(value, (FakeTensor, *py_sym_types))


def has_results(value: object) -> bool:
    """Whether there is anything in a value that has no content while a step is captured."""
    return any(map(is_empty, pytree.tree_leaves(value)))
