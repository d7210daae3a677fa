"""Which functions does torch call by itself? Hooks: of modules, of tensors, of optimizers, and those of all of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.modules import module as all_modules
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

Table: TypeAlias = Mapping[int, Callable[..., Any]]
OF_ALL: tuple[Table, ...] = (
    *(all_modules._global_forward_hooks, all_modules._global_forward_pre_hooks),
    *(all_modules._global_backward_hooks, all_modules._global_backward_pre_hooks),
    *(_global_optimizer_pre_hooks, _global_optimizer_post_hooks),
)
"""Those of all modules and all optimizers."""


def of_module(module: nn.Module) -> tuple[Table, ...]:
    """Return the hooks of a module."""
    return (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)


def of_tensor(tensor: Tensor) -> tuple[Table | None, Table | None]:
    """Return the hooks of a parameter: for its gradient, and after that has been added."""
    return (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)


def of_optimizer(optimizer: Optimizer) -> tuple[Table, Table]:
    """Return the hooks around the steps of an optimizer."""
    return (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)


def hooks(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[Callable[..., Any]]:
    """Yield all hooks that a step with these models and optimizers may call."""
    modules = [module for model in models for module in model.modules()]
    parameters = [parameter for module in modules for parameter in module._parameters.values() if parameter is not None]
    tables = [
        *OF_ALL,
        *(table for module in modules for table in of_module(module)),
        *(table for parameter in parameters for table in of_tensor(parameter)),
        *(table for optimizer in optimizers for table in of_optimizer(optimizer)),
    ]
    for table in tables:
        yield from (table or {}).values()
