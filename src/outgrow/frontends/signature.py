"""For which calls is a captured step right? Those with the same signature.

A signature is everything that shaped the capture and is not read anew at each call: shapes, dtypes, strides
and devices of all tensors, which state and gradients exist, arguments that are not tensors, training and
requires_grad flags, constants of the parameter groups, grad and autocast mode, and the number of threads. The
floats of parameter groups are inputs of the graph and not part of it; see `Captured.guards_hold`. So are the types of
modules, the numbers, flags and words that they have as attributes, and their hooks.

It walks modules by itself and takes about two microseconds a tensor, on every call but those of steps that have ample
room, where a `glance` is enough. What it does not see: Python values that the step closes over, and changes inside of
argument objects that are not tensors.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import Optimizer

from outgrow.errors import Uncapturable
from outgrow.frontends.containers import open_dataclasses
from outgrow.frontends.convert import address

_PLAIN = (bool, int, float, str)


def signature(
    step: Callable[..., object],
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Hashable:
    """Return a key that is equal for calls that one captured step can serve.

    Raises `Uncapturable` for an argument that is neither a tensor nor hashable.
    """
    order: dict[int, int] = {}
    return (
        step,
        _call(args, kwargs, order),
        _modules(models, order),
        tuple([_optimizer(optimizer, order) for optimizer in optimizers]),
    )


def glance(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], args: Sequence[object], kwargs: Mapping[str, object]
) -> Hashable:
    """Return what of a signature is quickly seen: the call, which models train, and how many parameters have state."""
    trains = tuple([model.training for model in models])
    given = (tuple([_seen(value) for value in args]), _seen(kwargs))
    return (given, _modes(), trains, tuple([len(optimizer.state) for optimizer in optimizers]))


def _seen(value: object) -> Hashable:
    """Describe an argument, and what plain containers hold by their order; whatever else there is as a call has it."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if type(value) is dict:
        return (dict, tuple(value), tuple([_seen(item) for item in value.values()]))
    if type(value) is list or type(value) is tuple:
        return (type(value), tuple([_seen(item) for item in value]))
    if value is None or type(value) in _PLAIN:
        return (type(value), value)
    return _call((value,), {}, {})


def _call(args: Sequence[object], kwargs: Mapping[str, object], order: dict[int, int]) -> Hashable:
    """Describe the arguments, and the modes of torch."""
    open_dataclasses((tuple(args), dict(kwargs)))
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    return (
        str(structure),
        tuple([_argument(leaf, order) for leaf in leaves]),
        _modes(),
    )


def _modes() -> Hashable:
    """Describe the modes of torch."""
    autocast = tuple([_autocast(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)])
    return (torch.is_grad_enabled(), torch.get_num_threads(), autocast)


def _layout(tensor: Tensor) -> Hashable:
    return (tensor.shape, tensor.dtype, tensor.stride())


def _tensor(tensor: Tensor) -> Hashable:
    return (tensor.shape, tensor.dtype, tensor.stride(), tensor.device, tensor.requires_grad)


def _argument(leaf: object, order: dict[int, int]) -> Hashable:
    """Describe an argument; of tensors also which of them share memory."""
    if isinstance(leaf, Tensor):
        return (_tensor(leaf), order.setdefault(address(leaf), len(order)))
    return (type(leaf), _hashable(leaf, "an argument of the step"))


def _hashable(value: object, what: str) -> Hashable:
    if isinstance(value, list):
        return tuple([_hashable(item, what) for item in value])
    if isinstance(value, Mapping):
        raise Uncapturable(f"{what} is a {type(value).__name__}, which is opaque; pass dict(...) of it instead")
    if not isinstance(value, Hashable):
        raise Uncapturable(f"{what} is a {type(value).__name__}; pass a tensor, a number or a string instead")
    return value


def _modules(models: Sequence[nn.Module], order: dict[int, int]) -> Hashable:
    """Describe the tensors of all modules, each once; a parameter met before is only named by its number.

    It is one flat list, since most of a signature's time goes here.
    """
    found: list[Hashable] = []
    seen: set[nn.Module] = set()
    waiting = list(models)
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        parameters, buffers = module._parameters, module._buffers
        found += (type(module), len(parameters), len(buffers), _numbers(module), _hooks(module))
        for parameter in parameters.values():
            if parameter is None or id(parameter) in order:
                found.append(None if parameter is None else order[id(parameter)])
            else:
                order[id(parameter)], grad = len(order), parameter.grad
                found += (parameter.shape, parameter.dtype, parameter.stride(), parameter.device)
                found += (parameter.requires_grad, None if grad is None else _layout(grad))
                found.append(None if parameter._backward_hooks is None else tuple(parameter._backward_hooks))
        found += [None if buffer is None else _layout(buffer) for buffer in buffers.values()]
        waiting += [child for child in module._modules.values() if child is not None]
    return tuple(found)


def _numbers(module: nn.Module) -> Hashable:
    """Return what a module has of its own that is a number, a flag or a word: a dropout's probability, for one."""
    return tuple([value for value in vars(module).values() if type(value) in _PLAIN])


def _hooks(module: nn.Module) -> Hashable:
    """Name the hooks of a module; each has a number of its own."""
    tables = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return tuple([tuple(table) for table in tables]) if any(tables) else None


def _optimizer(optimizer: Optimizer, order: dict[int, int]) -> Hashable:
    groups: list[Hashable] = [type(optimizer)]
    for group in optimizer.param_groups:
        groups.append(tuple([order.get(id(parameter), -1) for parameter in group["params"]]))
        groups.append(tuple([(key, _plain(value)) for key, value in group.items() if key != "params"]))
    states: list[Hashable] = []
    for parameter, entries in optimizer.state.items():
        states.append(order.get(id(parameter), -1))
        if isinstance(entries, dict):
            states += [(key, _layout(v) if isinstance(v, Tensor) else _exactly(v)) for key, v in entries.items()]
    return (tuple(groups), tuple(states))


def _plain(value: object) -> Hashable:
    """Describe an entry of a parameter group: floats by their type, everything else by its value."""
    match value:
        case float():
            return float
        case tuple() | list():
            return tuple([_plain(item) for item in value])
        case Tensor():
            return _tensor(value)
        case _:
            return _exactly(value)


def _exactly(value: object) -> Hashable:
    return (type(value), _hashable(value, "an entry of the optimizer"))


def _autocast(kind: str) -> Hashable:
    return (kind, torch.get_autocast_dtype(kind))
