"""Which objects does a step make anew in each call? Of the user's, such as a meter of a new name.

    meters = defaultdict(Meter)

    meters["loss"].update(loss.item())

While the step is captured such an object is taken apart, into its type and its attributes, and each call puts another
one together, without its constructor, which may compute. That is done only where all that is in it are results, plain
values and containers, so that no two of these objects share anything; and where it was made by the step, which is all
that the garbage collector sees then (`frontends.user.unseen.escapes`), and is at one place: two would have two of them.
"""

import gc
from collections.abc import Collection
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import Optimizer

from outgrow.frontends.user.left.attributes import is_empty
from outgrow.frontends.user.reach.configuration import NUMBERS
from outgrow.frontends.user.reach.locations import is_of_the_user

_UNCHANGING = (type, FunctionType, torch.dtype, torch.device)


class _Made(NamedTuple):
    """What an object is put together from: a pytree, unlike the object."""

    kind: type
    attributes: dict[str, object]


def taken_apart(value: object, known: Collection[int], met: set[int] | None = None) -> Any:
    """Return a value with the parts of objects in place of these.

    `known` are the identities of the `__dict__` of objects that there were before. Those that are taken apart are noted
    in `met`, and not taken apart again.
    """
    return pytree.tree_map(partial(_apart, known, set[int]() if met is None else met), value)


def is_made(value: object, known: Collection[int]) -> bool:
    """Whether a value is an object that can be taken apart."""
    return _is_made(taken_apart(value, known))


def put_together(value: object) -> Any:
    """Return a value with objects in place of their parts."""
    return pytree.tree_map(_together, value, is_leaf=_is_made)


def _apart(known: Collection[int], met: set[int], leaf: object) -> object:
    if not _may_be_made(type(leaf)) or id(vars(leaf)) in known or id(leaf) in met or not _is_new(leaf):
        return leaf
    met.add(id(leaf))
    parts = taken_apart(vars(leaf), known, met)
    leaves = pytree.tree_leaves(parts)
    is_own = all(is_empty(item) or type(item) in NUMBERS or isinstance(item, _UNCHANGING) for item in leaves)
    return _Made(type(leaf), parts) if is_own else leaf


def _is_new(item: object) -> bool:
    return any(found is item for found in gc.get_objects())


def _may_be_made(kind: type) -> bool:
    """Whether objects of a type are what is in their `__dict__`, and nothing else."""
    is_plain = kind.__new__ is object.__new__ and kind.__basicsize__ == _Plain.__basicsize__
    return is_plain and is_of_the_user(kind) and not issubclass(kind, (type, Tensor, nn.Module, Optimizer))


class _Plain:
    """An object without slots."""


def _is_made(item: object) -> bool:
    return isinstance(item, _Made)


def _together(item: object) -> object:
    if not isinstance(item, _Made):
        return item
    found = object.__new__(item.kind)
    vars(found).update(put_together(item.attributes))
    return found
