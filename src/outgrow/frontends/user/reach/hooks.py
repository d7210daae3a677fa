"""Which functions does torch call by itself? Hooks: of modules, tensors, optimizers, all of them, and what is saved."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules import module as all_modules
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle

from outgrow.frontends.user.reach.functions import has_value

Table: TypeAlias = Mapping[int, Callable[..., Any]]
_NO_HOOKS: Table = {}
_AUTOGRAD: Any = vars(torch._C)["_autograd"]
_OF_ALL: tuple[Table, ...] = (
    *(all_modules._global_forward_hooks, all_modules._global_forward_pre_hooks),
    *(all_modules._global_backward_hooks, all_modules._global_backward_pre_hooks),
    *(_global_optimizer_pre_hooks, _global_optimizer_post_hooks),
)
"""Those of all modules and all optimizers."""


@dataclass(frozen=True, slots=True)
class _Passing:
    """A hook of a capture, which is none of the user's; what other threads train is no part of the step."""

    hook: Callable[[Optimizer], None]
    thread: int = field(default_factory=get_ident)

    def __call__(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if get_ident() == self.thread:
            self.hook(optimizer)


def before_optimizers(hook: Callable[[Optimizer], None]) -> RemovableHandle:
    """Return a context within which a hook of a capture is called before each step of any optimizer, in this thread."""
    return register_optimizer_step_pre_hook(_Passing(hook))


def of_all() -> tuple[tuple[int, ...], ...]:
    """Return the keys of the user's hooks of all modules and optimizers, without tables that have none.

    Another thread may capture a step meanwhile.
    """
    tables = [
        tuple([key for key in tuple(table) if not isinstance(table.get(key), _Passing)]) for table in _OF_ALL if table
    ]
    return tuple([keys for keys in tables if keys])


def of_module(module: nn.Module) -> tuple[Table, ...]:
    """Return the hooks of a module."""
    return (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)


def of_tensor(tensor: Tensor) -> tuple[Table | None, Table | None]:
    """Return the hooks of a parameter: for its gradient, and after that has been added."""
    return (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)


def of_optimizer(optimizer: Optimizer) -> tuple[Table, Table]:
    """Return the hooks around the steps of an optimizer; none of one that was never initialised as one."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    before, after = (getattr(optimizer, name, _NO_HOOKS) for name in names)
    return (before, after)


def of_saved_tensors() -> Hashable:
    """Describe the hooks for what autograd saves, by their code and what they close over; None without any."""
    found = _of_saved_tensors()
    return None if found is None else tuple([_described(function) for function in found])


def _of_saved_tensors() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    return _AUTOGRAD._top_saved_tensors_default_hooks(False)  # noqa: FBT003 - it has no name


@contextmanager
def saved_without_hooks() -> Iterator[None]:
    """Within this context autograd saves tensors as they are, but for hooks that are set within it."""
    found: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
    while (hooks := _of_saved_tensors()) is not None:
        found.append(hooks)
        _AUTOGRAD._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(found):
            _AUTOGRAD._push_saved_tensors_default_hooks(pack, unpack)


def is_checkpointed() -> bool:
    """Whether what autograd would save now is computed again instead, by `torch.utils.checkpoint`."""
    found = _of_saved_tensors()
    return found is not None and all(function.__module__ == checkpoint.__name__ for function in found)


def _described(function: object) -> Hashable:
    if not isinstance(function, FunctionType):
        return function
    cells = [cell for cell in function.__closure__ or () if has_value(cell)]
    return (function.__code__, *(_hashed(cell.cell_contents) for cell in cells))


def _hashed(item: object) -> Hashable:
    """Return what can be hashed, or else which object it is."""
    try:
        hash(item)
    except TypeError:
        return id(item)
    return item


def hooks(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[Callable[..., Any]]:
    """Yield all hooks that a step with these models and optimizers may call."""
    modules = [module for model in models for module in model.modules()]
    parameters = [parameter for module in modules for parameter in module._parameters.values() if parameter is not None]
    tables = [
        *_OF_ALL,
        *(table for module in modules for table in of_module(module)),
        *(table for parameter in parameters for table in of_tensor(parameter)),
        *(table for optimizer in optimizers for table in of_optimizer(optimizer)),
    ]
    for table in tables:
        yield from (hook for hook in tuple((table or {}).values()) if not isinstance(hook, _Passing))
