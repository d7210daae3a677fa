"""For which calls is a captured step right? Those with the same signature.

A signature is everything that shaped the capture and is not read anew at each call: types, shapes, dtypes and strides
of all tensors and what they have in attributes, devices of parameters and arguments, which arguments are one tensor,
which tensors share memory and where they lie in it, which state and gradients exist, arguments that are not tensors,
requires_grad flags, the types of modules and under which names they, their parameters and buffers hang in each other,
what they and optimizers have in their attributes (`configuration`), all hooks, constants of the parameter groups, and
the modes of torch. Only finite floats and whole numbers of parameter groups, and numbers in the state of parameters,
are no part of it: they are inputs of the graph, or compared beside it (see `Captured.guards_hold`). What a step writes
to containers and arrays that are too large to be described is compared beside it, too (`Captured.fills_alike`).

It walks modules by itself and takes about two microseconds a tensor, on every call except where a step has ample room
and a `glance` is enough. What the step's code names outside, or of its arguments, and the modules beside that it runs
are compared beside it (`frontends.user.left.outside`), and so are tensors that it closes over (`Found`). What the step
reaches in other ways it does not see.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple, TypeAlias, cast

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from outgrow.errors import Uncapturable
from outgrow.frontends.user.left.counts import Count
from outgrow.frontends.user.reach import hooks
from outgrow.frontends.user.reach.configuration import NUMBERS, content, of_module, of_optimizer, of_tensor
from outgrow.frontends.user.reach.containers import open_containers
from outgrow.frontends.user.training.plain import is_number, is_whole
from outgrow.frontends.user.training.sharing import address
from outgrow.frontends.user.training.state import check_python, local
from outgrow.runtime.device import library_settings

_NO_HOOKS = (None, None)
_PLAIN = (bool, int, float, str)
_KINDS = ("cpu", "cuda")
Memory: TypeAlias = dict[int, tuple[int, int]]
"""For each storage its number, and the offset, in elements, of the first tensor met in it."""


class Signature(NamedTuple):
    """What calls of a step have in common that one captured step can serve: the `step`, its state, and the `call`."""

    step: int
    state: Hashable
    call: Hashable

    def is_of_state(self, other: "Signature") -> bool:
        """Whether another call is one of the same step in the same state."""
        return self.step == other.step and self.state == other.state


class Seen(NamedTuple):
    """What is quickly seen of a call: the shapes of the tensors among its arguments, and the `rest`."""

    shapes: tuple[tuple[int, ...], ...]
    rest: Hashable

    def covers(self, other: "Seen") -> bool:
        """Whether another call is like this one, or differs in nothing but tensors that are smaller."""
        if self.rest != other.rest:
            return False
        pairs = zip(self.shapes, other.shapes, strict=True)
        return all(most >= size for ours, theirs in pairs for most, size in zip(ours, theirs, strict=True))


def signature(
    step: Callable[..., object],
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    counts: Collection[Count] = (),
) -> Signature:
    """Return a key that is equal for calls that one captured step can serve, whatever some `counts` in attributes are.

    Raises `Uncapturable` for an argument that is neither a tensor nor hashable, for a nested or sparse tensor, and for
    a module of `torch.jit`.
    """
    order: dict[int, int] = {}
    memory: Memory = {}
    state = (
        _modules(models, order, memory, _names(counts)),
        tuple([_optimizer(optimizer, order, memory) for optimizer in optimizers]),
    )
    return Signature(id(step), state, _call(args, kwargs, memory))


def glance(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], args: Sequence[object], kwargs: Mapping[str, object]
) -> Seen:
    """Return what is quickly seen of a signature: the call, which models train, and how many parameters have state."""
    shapes: list[tuple[int, ...]] = []
    trains = tuple([model.training for model in models])
    given = (tuple([_seen(value, shapes) for value in args]), _seen(kwargs, shapes))
    rest = (given, _modes(), trains, tuple([len(optimizer.state) for optimizer in optimizers]))
    return Seen(tuple(shapes), rest)


def glance_at_inputs(args: Sequence[object]) -> Seen:
    """Return what is quickly seen of the inputs of a part, whose whole numbers are sizes like those of shapes."""
    described = glance((), (), [None if type(arg) is int else arg for arg in args], {})
    return described._replace(shapes=(*described.shapes, tuple([arg for arg in args if type(arg) is int])))


def _seen(value: object, shapes: list[tuple[int, ...]]) -> Hashable:
    """Describe an argument: of a tensor the order of its strides, while its shape is noted; of a container, all.

    Of a float that it is one: nothing is as large as a float says.
    """
    if isinstance(value, Tensor):
        _, _, *described = _tensor(value)
        shapes.append(value.shape)
        strides = value.stride()
        return (tuple(sorted(range(len(strides)), key=strides.__getitem__)), *described)
    if type(value) is dict:
        return (dict, tuple(value), tuple([_seen(item, shapes) for item in value.values()]))
    if type(value) is list or type(value) is tuple:
        return (type(value), tuple([_seen(item, shapes) for item in value]))
    if type(value) is float:
        return float
    if value is None or type(value) in _PLAIN:
        return (type(value), value)
    open_containers(value)
    leaves, structure = pytree.tree_flatten(value)
    if structure.is_leaf():
        return _argument(value, {})
    return (str(structure), tuple([_seen(leaf, shapes) for leaf in leaves]))


def _call(args: Sequence[object], kwargs: Mapping[str, object], memory: Memory) -> Hashable:
    """Describe the arguments, and the modes of torch."""
    open_containers((tuple(args), dict(kwargs)))
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    order: dict[int, int] = {}
    return (
        str(structure),
        tuple([_argument(leaf, memory) for leaf in leaves]),
        tuple([order.setdefault(id(leaf), len(order)) for leaf in leaves if isinstance(leaf, Tensor)]),
        _modes(),
    )


def _modes() -> Hashable:
    """Describe the modes of torch that tell which operators and kernels run."""
    autocast = tuple([(kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind)])
    return (
        *map(torch.get_autocast_dtype, _KINDS),  # a step may switch autocast on itself
        torch.is_autocast_cache_enabled(),
        *(torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        *(torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()),
        parametrize._cache_enabled > 0,
        hooks.of_saved_tensors(),
        tuple([_mode(mode) for mode in _get_current_function_mode_stack()]),
        tuple(_get_current_dispatch_mode_stack()),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        *(torch._C._get_cudnn_deterministic(), torch._C._get_cudnn_enabled()),
        library_settings() if torch.cuda.is_initialized() else None,
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
        autocast,
        hooks.of_all(),
    )


def _mode(mode: TorchFunctionMode) -> Hashable:
    """Describe a mode that changes what functions of torch do; that of a default device is one for each device."""
    return mode.device if isinstance(mode, DeviceContext) else mode


def _layout(tensor: Tensor, memory: Memory) -> Hashable:
    """Describe a tensor of the state: its layout, the number and size of its memory, and its offset there.

    No step is captured with one that is not dense, so its kind is enough. Of one that is spread over a mesh the part
    counts that is here.
    """
    if tensor.layout is not torch.strided:
        return (tensor.shape, tensor.dtype, tensor.layout)
    kind, stride = type(tensor), tensor.stride()
    is_plain = kind is nn.Parameter or kind is Tensor
    part = tensor if is_plain else local(tensor)
    storage, offset = part.untyped_storage(), cast("int", part.storage_offset())
    number, _ = memory.setdefault(storage._cdata, (len(memory), offset))
    lies = stride if part is tensor else part.stride()
    own = of_tensor(tensor) if is_plain and vars(tensor) else None
    return (tensor.shape, tensor.dtype, stride, lies, number, offset, storage.nbytes(), kind, own)


def _tensor(tensor: Tensor) -> tuple[Hashable, ...]:
    """Describe an argument; raises `Uncapturable` for a nested tensor, which has no shape, and for a sparse one."""
    if tensor.is_nested:
        raise Uncapturable(
            "an argument of the step is a nested tensor, whose shapes are contents; pass a padded tensor and its mask, "
            "or its tensors in a list (x.unbind())"
        )
    if tensor.layout is not torch.strided:
        raise Uncapturable(
            f"an argument of the step is a sparse tensor ({tensor.layout}), and plans hold dense ones only; pass "
            "x.to_dense(), or its indices and values, each a dense tensor"
        )
    # one that wants a gradient is captured by parts alone, which do not look at it
    kind, has_gradient = type(tensor), not tensor.requires_grad and tensor.is_leaf and tensor.grad is not None
    return (
        *(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad),
        *(kind, has_gradient, of_tensor(tensor)),
    )


def _argument(leaf: object, memory: Memory) -> Hashable:
    """Describe an argument; for a tensor, also which other tensors share its memory, and how far apart they begin."""
    if isinstance(leaf, Tensor):
        described, offset = _tensor(leaf), int(leaf.storage_offset())
        number, first = memory.setdefault(address(leaf), (len(memory), offset))
        return (described, leaf.is_inference(), number, offset - first)
    described = content(leaf)
    return (type(leaf), described if type(leaf) in NUMBERS else (_hashable(leaf, "an argument of the step"), described))


def _hashable(value: object, what: str) -> Hashable:
    if isinstance(value, list):
        return tuple([_hashable(item, what) for item in value])
    if isinstance(value, Mapping):
        raise Uncapturable(f"{what} is a {type(value).__name__}, which is opaque; pass dict(...) of it instead")
    if not isinstance(value, Hashable):
        raise Uncapturable(
            f"{what} is a {type(value).__name__}; pass tensors, numbers or strings instead, as they are, or in a dict, "
            "list, tuple or dataclass"
        )
    return value


def _names(counts: Collection[Count]) -> dict[int, frozenset[str]]:
    """Return the names of counts that are attributes of modules, by the identity of the module."""
    found: dict[int, frozenset[str]] = {}
    for owner, (*_, name) in (count.location.key for count in counts if not count.is_deep):
        found[owner] = found.get(owner, frozenset()) | {name}
    return found


def _modules(
    models: Sequence[nn.Module], order: dict[int, int], memory: Memory, apart: Mapping[int, frozenset[str]]
) -> Hashable:
    """Describe the tensors of all modules, each once; what was met before is only named by its number.

    It is one flat list, since most of a signature's time goes here.
    """
    found: list[Hashable] = []
    known: dict[int, int] = {}
    numbers: dict[nn.Module | None, int] = {None: -1}
    waiting = list(models)
    found += [numbers.setdefault(model, len(numbers)) for model in models]
    seen: set[nn.Module] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        check_python(module)
        parameters, buffers, children = module._parameters, module._buffers, module._modules
        own = of_module(module, known, apart.get(id(module), frozenset()))
        found += (type(module), tuple(parameters), tuple(buffers), own, _hooks(module))
        found += [(name, numbers.setdefault(child, len(numbers))) for name, child in children.items()]
        for parameter in parameters.values():
            if parameter is None or id(parameter) in order:
                found.append(None if parameter is None else order[id(parameter)])
            else:
                order[id(parameter)], grad = len(order), parameter.grad
                found += (_layout(parameter, memory), parameter.device, parameter.requires_grad)
                found.append(None if grad is None else _layout(grad, memory))
                tables = hooks.of_tensor(parameter)
                if tables != _NO_HOOKS:
                    found += [None if table is None else tuple(table) for table in tables]
        found += [None if item is None else (_layout(item, memory), item.requires_grad) for item in buffers.values()]
        waiting += [child for child in children.values() if child is not None]
    return tuple(found)


def _hooks(module: nn.Module) -> Hashable:
    """Name the hooks of a module; each has a number of its own."""
    tables = hooks.of_module(module)
    return tuple([tuple(table) for table in tables]) if any(tables) else None


def _optimizer(optimizer: Optimizer, order: dict[int, int], memory: Memory) -> Hashable:
    tables = tuple([tuple(table) for table in hooks.of_optimizer(optimizer)])
    groups: list[Hashable] = [type(optimizer), of_optimizer(optimizer), tables]
    for group in optimizer.param_groups:
        groups.append(tuple([order.get(id(parameter), -1) for parameter in group["params"]]))
        groups.append(tuple([(key, _plain(value, memory)) for key, value in group.items() if key != "params"]))
    states: list[Hashable] = []
    for parameter, entries in optimizer.state.items():
        states.append(order.get(id(parameter), -1))
        if isinstance(entries, dict):
            states += [
                (key, _layout(v, memory) if isinstance(v, Tensor) else type(v) if is_number(v) else _exactly(v))
                for key, v in entries.items()
            ]
        else:
            states.append((type(entries), content(entries)))
    return (tuple(groups), tuple(states))


def _plain(value: object, memory: Memory) -> Hashable:
    """Describe an entry of a parameter group: finite floats by their type, everything else by its value."""
    match value:
        case float():
            return float if isfinite(value) else repr(float(value))  # in which one that is no number is equal
        case tuple() | list():  # of whose entries floats are inputs of the graph, but none that lie deeper
            return tuple([_plain(x, memory) if isinstance(x, float) else (type(x), content(x)) for x in value])
        case Tensor():
            return (_tensor(value), _layout(value, memory))
        case dict():
            return (type(value), content(value))
        case _:
            return int if is_whole(value) else _exactly(value)


def _exactly(value: object) -> Hashable:
    return (type(value), _hashable(value, "an entry of the optimizer"))
