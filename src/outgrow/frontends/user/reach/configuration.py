"""What in the attributes of a module or an optimizer tells its Python what to do? All that looks like configuration.

    numbers, words      by their type and value: `True`, `1` and `1.0` may lead to different steps; likewise decimals,
                        fractions, dates, times and paths
    tensors, functions, by which one it is; likewise types, dtypes, devices, members of enumerations, modules,
                        optimizers, schedulers and gradient scalers
    containers          by their entries, in order, but of a great many entries by some, and which container it is
    configurations      data classes, namespaces, and objects of a type called ...Config: by their own attributes
    anything else       by its type: it may be a trainer, or a logger, that changes with every step

So an attribute that is set to another number, or a configuration that is changed in place, makes another step.
"""

import weakref
from argparse import Namespace
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sized
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from pathlib import PurePath
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from outgrow.frontends.user.reach import hooks
from outgrow.frontends.user.reach.functions import wraps

Known = dict[int, int]
"""For each container and configuration met before its number, so that each is described once."""
_Describe: TypeAlias = Callable[[Any, Known], Hashable]

_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
_OF_OPTIMIZERS = frozenset(
    (
        *("state", "param_groups", "step", "_opt_called"),
        *("_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"),
        *(f"_optimizer_{table}_hooks" for table in ("step_pre", "step_post", "state_dict_pre", "state_dict_post")),
        *("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks"),
    )
)
"""Torch's own attributes: tables that a signature describes by themselves, and marks that schedulers make."""
_MOST_ENTRIES = 256
_MOST_BYTES = 1 << 14
_MOST_CONTAINERS, _SAMPLES = 64, 16
"""Of larger containers and arrays, it counts which one it is, and some of what is in it."""
NUMBERS = frozenset((bool, int, float, complex, str, bytes, type(None)))
"""What is described by its value."""
_SINGLE = (
    *(nn.Module, type, Enum, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(FunctionType, BuiltinFunctionType, BuiltinMethodType, MethodType, partial),
)
_SHOWN = (Decimal, Fraction, PurePath, date, time, timedelta)
"""What nobody can change, and shows all that it is."""
_PLAIN_TENSORS = (Tensor, nn.Parameter)
TOLD_APART = (Optimizer, LRScheduler, GradScaler)
_TABLES = (dict, UserDict, ChainMap, MappingProxyType)


def of_module(module: nn.Module, known: Known, apart: frozenset[str] = frozenset()) -> Hashable:
    """Describe what a module has of its own, but for what is `apart`: a dropout's probability, a configuration."""
    return _described(vars(module), known, _OF_MODULES | apart if apart else _OF_MODULES)


def of_tensor(tensor: Tensor) -> Hashable:
    """Describe what somebody has put into the attributes of a tensor; most have none."""
    own = attributes_of(tensor)
    return _described(own, {}) if own else None


def attributes_of(tensor: Tensor) -> Mapping[str, object]:
    """Return what somebody has put into the attributes of a tensor; what other types have there is their own."""
    return vars(tensor) if type(tensor) in _PLAIN_TENSORS else {}


def of_helper(module: nn.Module, met: dict[int, Hashable]) -> Hashable:
    """Describe what a module that is not in training has of its own, and which tensors, modules and hooks it has.

    What `met` has by its identity is described already: modules share a configuration.
    """
    found: list[Hashable] = []
    for name, value in vars(module).items():
        if name in _OF_MODULES:
            continue
        if type(value) not in NUMBERS and id(value) not in met:
            met[id(value)] = content(value)
        found += (name, type(value), content(value) if type(value) in NUMBERS else met[id(value)])
    held = (module._parameters, module._buffers, module._modules)
    items = [
        (name, item if item is None else _Which(item), isinstance(item, Tensor) and item.requires_grad)
        for table in held
        for name, item in table.items()
    ]
    called = [tuple(table.items()) for table in hooks.of_module(module) if table]
    return (tuple(found), tuple(items), tuple(called))


def of_optimizer(optimizer: Optimizer) -> Hashable:
    """Describe what an optimizer has of its own, beside groups and state."""
    return (_described(vars(optimizer), {}, _OF_OPTIMIZERS), _own_step(optimizer))


def _own_step(optimizer: Optimizer) -> object:
    """Return what an optimizer has in place of its method `step`; None for what wraps that."""
    own = vars(optimizer).get("step")
    return None if wraps(own, (type(optimizer).step,)) else own


def _described(attributes: Mapping[str, object], known: Known, without: frozenset[str] = frozenset()) -> Hashable:
    found: list[Hashable] = []
    for name, value in attributes.items():
        if name not in without:
            found += (name, type(value), _value(value, known))
    return tuple(found)


def content(value: object) -> Hashable:
    """Describe a value by itself."""
    return _value(value, _Few())


def _value(value: Any, known: Known) -> Hashable:
    kind = type(value)
    if kind is float:
        return value.hex()  # 0.0 equals -0.0, and what is not a number equals nothing
    if kind is complex:
        return (value.real.hex(), value.imag.hex())
    if kind in NUMBERS:
        return value
    describe = _way(kind)
    return None if describe is None else describe(value, known)


def is_same(one: object, other: object) -> bool:
    """Whether two values are described alike, to the last bit."""
    return one is other or (type(one) is type(other) and content(one) == content(other))


def is_sampled(value: object) -> bool:
    """Whether a container or an array is so large that its description has but some of what is in it."""
    if isinstance(value, np.ndarray):
        return value.nbytes > _MOST_BYTES
    return isinstance(value, Sized) and len(value) > (_MOST_BYTES if isinstance(value, bytearray) else _MOST_ENTRIES)


def is_configuration(value: object) -> bool:
    """Whether an object is one whose own attributes are its content."""
    return _way(type(value)) is _configuration and hasattr(value, "__dict__")


def is_opaque(value: object) -> bool:
    """Whether an object is described by nothing that is in it: by its type, or by which one it is."""
    return _way(type(value)) is None or isinstance(value, TOLD_APART)


def is_settled(value: object, depth: int = 6) -> bool:
    """Whether a value is described by its content or identity all through: there is no tensor in it."""
    way = _way(type(value))
    if way is _itself:
        return True
    if depth == 0 or way in (None, _which):
        return False
    if way is _entries:
        return isinstance(value, Mapping) and all(is_settled(item, depth - 1) for item in value.values())
    if way is _items:
        return isinstance(value, Iterable) and all(is_settled(item, depth - 1) for item in value)
    if way is _configuration:
        return hasattr(value, "__dict__") and is_settled(vars(value), depth - 1)
    return True


@cache
def _way(kind: type) -> _Describe | None:
    """Return how values of a type are described; None if by their type alone."""
    if issubclass(kind, np.generic):
        return _scalar
    if issubclass(kind, (*NUMBERS, *_SINGLE)):
        return _itself
    if issubclass(kind, (Tensor, *TOLD_APART)):
        return _which
    if issubclass(kind, np.ndarray):
        return _array
    if issubclass(kind, bytearray | array):
        return _bytes
    if issubclass(kind, _SHOWN):
        return _shown
    if issubclass(kind, slice | range):
        return _range
    if issubclass(kind, _TABLES):
        return _entries
    if issubclass(kind, list | tuple | deque | set | frozenset | UserList):
        return _items
    if is_dataclass(kind) or issubclass(kind, SimpleNamespace | Namespace) or kind.__name__.endswith("Config"):
        return _configuration
    return None


def _itself(value: Hashable, _known: Known) -> Hashable:
    return value


def _scalar(value: np.generic, _known: Known) -> Hashable:
    return (value.dtype.str, value.tobytes())


class _Which:
    """One tensor, module or other object, which another one at its address is not."""

    __slots__ = ("_hash", "_item")

    def __init__(self, item: object) -> None:
        self._item, self._hash = weakref.ref(item), id(item)

    def __eq__(self, other: object) -> bool:
        item = self._item()
        return isinstance(other, _Which) and item is not None and item is other._item()

    def __hash__(self) -> int:
        return self._hash


def _which(value: object, _known: Known) -> Hashable:
    return _Which(value)


def _shown(value: object, _known: Known) -> Hashable:
    return repr(value)


def _bytes(value: Any, _known: Known) -> Hashable:
    if len(value) <= _MOST_BYTES:
        return bytes(value)
    return (len(value), id(value), bytes(value[:: -(-len(value) // _SAMPLES)]))


def _array(value: Any, _known: Known) -> Hashable:
    if value.nbytes <= _MOST_BYTES:
        return (value.shape, value.dtype.str, value.tobytes())
    return (value.shape, value.dtype.str, id(value), value.flat[:: -(-value.size // _SAMPLES)].tobytes())


def _range(value: slice | range, _known: Known) -> Hashable:
    return (value.start, value.stop, value.step)


def _entries(value: Mapping[Hashable, object], known: Known) -> Hashable:
    if id(value) in known:
        return known[id(value)]
    if _is_large(value, known):
        return (id(value), len(value), _samples(value.values(), len(value)))
    known[id(value)] = len(known)
    return tuple([(_key(key, known), type(item), _value(item, known)) for key, item in value.items()])


def _key(key: Hashable, known: Known) -> Hashable:
    return key if type(key) is str else (type(key), _value(key, known))


def _items(value: Collection[object], known: Known) -> Hashable:
    if id(value) in known:
        return known[id(value)]
    if _is_large(value, known):
        return (id(value), len(value), _samples(value, len(value)))
    known[id(value)] = len(known)
    return tuple([(type(item), _value(item, known)) for item in value])


def _is_large(value: Collection[object], known: Known) -> bool:
    """Whether a container has too many entries to look at each, or is one of too many containers in one."""
    return len(value) > _MOST_ENTRIES or (isinstance(known, _Few) and len(known) >= _MOST_CONTAINERS)


def _samples(items: Iterable[object], count: int) -> Hashable:
    """Describe some entries of a large container by themselves, as far as they are no containers."""
    some = islice(items, 0, None, -(-count // _SAMPLES)) if count else ()
    return tuple([_value(item, {}) if type(item) in NUMBERS or isinstance(item, Tensor) else None for item in some])


class _Few(Known):
    """What is known while one value is described by itself, which may not take long."""


def _configuration(value: object, known: Known) -> Hashable:
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = len(known)
    if hasattr(value, "__dict__"):
        return _described(vars(value), known)
    names = [field.name for field in fields(value)] if is_dataclass(value) else []
    return tuple([(name, _value(getattr(value, name), known)) for name in names if hasattr(value, name)])
