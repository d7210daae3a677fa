"""Which containers may hold tensors? Torch's pytrees; dataclasses, and dictionaries by `UserDict`, are made so here.

What they hold is exchanged in a copy that is not made by its constructor, which may compute. That of a `UserDict`, such
as a batch of a tokenizer, has what is in it, and of its other attributes those that are numbers, words or None.
"""

import dataclasses
from collections import UserDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.types import py_sym_types

from outgrow.errors import Uncapturable
from outgrow.frontends.user.reach.configuration import NUMBERS


def open_containers(value: object) -> None:
    """Let every dataclass, and every `UserDict`, in `value` that holds tensors be a pytree from now on.

    So do those that hold numbers of tensors.
    """
    for leaf in pytree.tree_leaves(value):
        is_one = isinstance(leaf, UserDict) or (dataclasses.is_dataclass(leaf) and not isinstance(leaf, type))
        if is_one and held(leaf) is not None:
            _open(type(leaf))
            open_containers(_inside(leaf))


def _open(kind: type) -> None:
    """Let a type be a pytree, of whatever its objects have as attributes."""

    def flattened(value: Any) -> tuple[list[Any], list[str]]:
        attributes = _attributes(value)
        if isinstance(value, UserDict):
            attributes = {name: item for name, item in attributes.items() if name == "data" or type(item) in NUMBERS}
        return list(attributes.values()), list(attributes)

    def made_of(leaves: Iterable[Any], names: list[str]) -> Any:
        value = object.__new__(kind)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(value, name, leaf)
        return value

    pytree.register_pytree_node(kind, flattened, made_of)


def check_open(value: object, remedy: str) -> None:
    """Raise `Uncapturable`, with a remedy, where something in `value` that is no pytree holds tensors."""
    for leaf in pytree.tree_leaves(value):
        item = None if isinstance(leaf, (nn.Module, Optimizer, GradScaler)) else held(leaf)
        if item is not None:
            what = "tensors" if isinstance(item, Tensor) else "numbers of tensors"
            raise Uncapturable(f"a {type(leaf).__name__} holds {what}; {remedy}")


def held(leaf: object) -> object:
    """Return a tensor that an object holds, or a number of one; None if it holds neither."""
    items = pytree.tree_leaves(_inside(leaf))
    return next((item for item in items if isinstance(item, (Tensor, *py_sym_types))), None)


def _inside(leaf: object) -> object:
    """Return what an object holds, as a pytree."""
    if isinstance(leaf, (Tensor, type)):
        return None
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    return list(_attributes(leaf).values())


def _attributes(value: object) -> dict[str, object]:
    """Return what an object has in its `__dict__`, or, if it is a dataclass, in its slots."""
    named = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return getattr(value, "__dict__", {}) | {name: getattr(value, name) for name in named if hasattr(value, name)}
