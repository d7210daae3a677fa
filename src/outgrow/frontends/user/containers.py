"""Which containers may hold tensors? Torch's pytrees; dataclasses are made pytrees here."""

import dataclasses
from collections.abc import Mapping

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import Optimizer

from outgrow.errors import Uncapturable


def open_dataclasses(value: object) -> None:
    """Let every dataclass in `value` that holds tensors be a pytree from now on."""
    for leaf in pytree.tree_leaves(value):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and _holds_tensors(leaf):
            pytree.register_dataclass(type(leaf))
            open_dataclasses(_inside(leaf))


def check_open(value: object) -> None:
    """Raise `Uncapturable` where something in `value` that is no pytree holds tensors."""
    for leaf in pytree.tree_leaves(value):
        if not isinstance(leaf, (nn.Module, Optimizer)) and _holds_tensors(leaf):
            raise Uncapturable(
                f"the step returns a {type(leaf).__name__} that holds tensors; "
                "return them in a dict, list, tuple or dataclass"
            )


def _holds_tensors(leaf: object) -> bool:
    return any(isinstance(item, Tensor) for item in pytree.tree_leaves(_inside(leaf)))


def _inside(leaf: object) -> object:
    """Return what an object holds, as a pytree."""
    if isinstance(leaf, (Tensor, type)):
        return None
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    return list(vars(leaf).values()) if hasattr(leaf, "__dict__") else None
