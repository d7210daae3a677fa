"""Where do the tensors of a training step hang?

A *slot* is a place that holds a tensor between steps: a parameter or buffer of a module, `p.grad`, the state
that an optimizer keeps for a parameter, a tensor or a float in a parameter group, a leaf of the step's
arguments, or a constant that the step closes over. Slots are plain data, so a captured step stays valid when
a tensor is exchanged for another one of the same kind: `read` looks it up anew, `put` hangs a new tensor
there.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, TypeAlias, TypeGuard

import torch
import torch.utils._pytree as pytree
from torch import SymFloat, SymInt, Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from outgrow.errors import Uncapturable
from outgrow.frontends.user.reach.locations import Location
from outgrow.ir.layout import dense_strides, order_of


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """The parameter of this dotted name."""

    model: int
    name: str


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """The buffer of this dotted name."""

    model: int
    name: str


@dataclass(frozen=True, slots=True)
class GradientSlot:
    """`.grad` of a parameter."""

    parameter: ParameterSlot


@dataclass(frozen=True, slots=True)
class OptimizerSlot:
    """`optimizer.state[parameter][key]`."""

    optimizer: int
    parameter: ParameterSlot
    key: str


@dataclass(frozen=True, slots=True)
class GroupSlot:
    """`optimizer.param_groups[group][key]`, or one element of the tuple there."""

    optimizer: int
    group: int
    key: str
    element: int | None = None


@dataclass(frozen=True, slots=True)
class OutsideSlot:
    """A number of a `kind` that the step finds outside, and changes; `place` tells it from others of the capture."""

    key: Hashable
    location: Location = field(compare=False)
    place: int = field(compare=False)
    kind: type = field(compare=False)

    @staticmethod
    def at(location: Location, place: int) -> "OutsideSlot":
        """Return the slot of what is at a location now."""
        return OutsideSlot(location.key, location, place, type(location.read()))

    def still_fits(self) -> bool:
        """Whether a number of the same kind is there."""
        return type(self.location.read()) is self.kind


@dataclass(frozen=True, slots=True)
class BatchSlot:
    """A leaf of the flattened `(args, kwargs)` of the call."""

    leaf: int


@dataclass(frozen=True, slots=True)
class ConstantSlot:
    """A tensor that the step closes over, by its place in `Captured.constants`."""

    index: int


StateSlot: TypeAlias = ParameterSlot | BufferSlot | GradientSlot | OptimizerSlot | GroupSlot | OutsideSlot
HeldSlot: TypeAlias = StateSlot | BatchSlot
"""The slot of a tensor that the user has in hand."""
Slot: TypeAlias = HeldSlot | ConstantSlot


def title(slot: StateSlot) -> str:
    """Return what a tensor of models and optimizers is called in a message."""
    match slot:
        case ParameterSlot(name=name):
            return f"parameter {name!r}"
        case BufferSlot(name=name):
            return f"buffer {name!r}"
        case GradientSlot(parameter):
            return f"the gradient of {title(parameter)}"
        case OptimizerSlot(parameter=parameter, key=key):
            return f"optimizer state {key!r} of {title(parameter)}"
        case GroupSlot(optimizer=optimizer, group=group, key=key):
            return f"param_groups[{group}][{key!r}] of optimizer {optimizer}"
        case OutsideSlot(location=location):
            return f"`{location.name}`"


def title_of_argument(leaf: int, tensor: Tensor) -> str:
    """Return what a tensor among the arguments is called in a message, by the number of its leaf.

    >>> title_of_argument(0, torch.ones(2, 4))
    'argument number 1 (counted from 1, and one by one in containers; of shape (2, 4))'
    """
    return f"argument number {leaf + 1} (counted from 1, and one by one in containers; of shape {tuple(tensor.shape)})"


def storage_name(slot: Slot) -> str:
    """Return the name of the storage that hangs in a slot.

    >>> storage_name(OptimizerSlot(0, ParameterSlot(0, "layer.weight"), "exp_avg"))
    'model.layer.weight.exp_avg'
    """
    match slot:
        case ParameterSlot(model, name) | BufferSlot(model, name):
            return f"model{model or ''}.{name}"
        case GradientSlot(parameter):
            return f"{storage_name(parameter)}.grad"
        case OptimizerSlot(optimizer, parameter, key):
            return f"{storage_name(parameter)}.{key}{f'.{optimizer}' if optimizer else ''}"
        case GroupSlot(optimizer, group, key, element):
            return f"hyper.{optimizer}.{group}.{key}{'' if element is None else f'.{element}'}"
        case OutsideSlot(place=place):
            return f"outside.{place}"
        case BatchSlot(leaf):
            return f"batch.{leaf}"
        case ConstantSlot(index):
            return f"constant.{index}"


@dataclass(frozen=True, slots=True)
class Training:
    """The models and optimizers that a step works on."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]

    def owners(self) -> Iterator[nn.Module | Optimizer]:
        """Yield all that signatures describe: models, their modules, and optimizers."""
        for model in self.models:
            yield from model.modules()
        yield from self.optimizers


def parameters(training: Training) -> dict[ParameterSlot, nn.Parameter]:
    """Return the parameters of all models, tied ones once, under the first name."""
    found: dict[int, tuple[ParameterSlot, nn.Parameter]] = {}
    for model, module in enumerate(training.models):
        for name, parameter in module.named_parameters():
            found.setdefault(id(parameter), (ParameterSlot(model, name), parameter))
    return dict(found.values())


def state_tensors(training: Training) -> dict[StateSlot, Tensor]:
    """Return every tensor that models and optimizers hold, by slot.

    Raises `Uncapturable` where an optimizer updates a parameter of no model, or nests tensors in its state, for a
    tensor that is not dense, and for a module of `torch.jit`.
    """
    owned = parameters(training)
    for slot, parameter in owned.items():
        if is_lazy(parameter):
            raise Uncapturable(
                f"parameter {slot.name!r} has no shape before the first forward pass; call the model once before the "
                "first step"
            )
    held: dict[StateSlot, Tensor] = {**owned}
    for model, module in enumerate(training.models):
        held |= {BufferSlot(model, name): buffer for name, buffer in _buffers(module)}
    held |= {GradientSlot(slot): p.grad for slot, p in owned.items() if p.grad is not None}
    slots = {id(parameter): slot for slot, parameter in owned.items()}
    for index, optimizer in enumerate(training.optimizers):
        for at, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                _check_owned(optimizer, parameter, slots)
            held |= {GroupSlot(index, at, k): v for k, v in group.items() if isinstance(v, Tensor)}
        for parameter, entries in optimizer.state.items():
            for key, value in entries_of(entries).items():
                if isinstance(value, Tensor) and id(parameter) not in slots:
                    raise Uncapturable(f"{type(optimizer).__name__} keeps a tensor {_stray(parameter, key)}")
                if isinstance(value, Tensor):
                    held[OptimizerSlot(index, slots[id(parameter)], key)] = value
                elif any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
                    raise Uncapturable(
                        f"{type(optimizer).__name__} keeps tensors nested in state[...][{key!r}]; "
                        "keep each tensor under a key of its own (state[p]['left'], state[p]['right'])"
                    )
    _check_dense(held)
    return held


def check_python(module: nn.Module) -> None:
    """Raise `Uncapturable` for a module whose code and tensors are in the hands of `torch.jit`."""
    if isinstance(module, torch.jit.ScriptModule):
        raise Uncapturable(
            f"a {module.original_name} has been compiled by torch.jit (script, trace or load), so there is no Python "
            "to follow; make the module by its class, and give it the same content with load_state_dict"
        )


def _check_dense(held: Mapping[StateSlot, Tensor]) -> None:
    for slot, tensor in held.items():
        if tensor.layout is not torch.strided:
            raise Uncapturable(
                f"{title(slot)} is a sparse tensor ({tensor.layout}), and plans hold dense ones only; make it dense "
                "(sparse=False, to_dense), and clear sparse gradients that are left, with zero_grad"
            )


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of a model; one that hangs in several places under the name of each."""
    for path, module in model.named_modules():
        check_python(module)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield (f"{path}.{name}" if path else name), buffer


def held_tensors(training: Training) -> Iterator[Tensor]:
    """Yield every dense tensor that models and optimizers hold, also where an optimizer updates what no model owns."""
    yield from (tensor for tensor in _held(training) if tensor.layout is torch.strided)


def _held(training: Training) -> Iterator[Tensor]:
    for module in training.models:
        yield from module.parameters()
        yield from module.buffers()
    for optimizer in training.optimizers:
        yield from (parameter for group in optimizer.param_groups for parameter in group["params"])
        yield from (item for item in pytree.tree_leaves(dict(optimizer.state)) if isinstance(item, Tensor))
    yield from (p.grad for module in training.models for p in module.parameters() if p.grad is not None)


def _stray(owner: object, key: str) -> str:
    """Say whose state a tensor is that is in the state of an optimizer, but of no parameter in training."""
    if isinstance(owner, nn.Parameter):
        return (
            f"in state[parameter][{key!r}], where the parameter, of shape {tuple(owner.shape)}, is in no model any "
            "more; delete it: del optimizer.state[parameter]"
        )
    return (
        f"in state[{owner!r:.40}][{key!r}], which is the state of no parameter; keep it in the state of a parameter, "
        "or in a parameter group"
    )


def entries_of(entries: object) -> dict[str, object]:
    """Return what an optimizer keeps for a parameter by its keys; nothing, if it keeps something else."""
    return entries if isinstance(entries, dict) else {}


def _check_owned(optimizer: Optimizer, parameter: Tensor, slots: dict[int, ParameterSlot]) -> None:
    if id(parameter) not in slots:
        raise Uncapturable(
            f"{type(optimizer).__name__} updates a parameter of shape {tuple(parameter.shape)} that no model owns. "
            "Was model= another model than the step's? Name every module that is trained: model=[model, loss_module], "
            "and make the optimizer of their parameters. Is it a tensor of its own? Let it be an nn.Parameter in an "
            "nn.ParameterList, and name that. Did load_state_dict(assign=True), or weight_norm, make new parameters "
            "after the optimizer was made? Make it afterwards. Was its layer replaced? Take the old parameters out of "
            "the optimizer's param_groups and state. A step writes into parameters (copy_) and makes no new ones"
        )


def hyper_parameters(training: Training) -> dict[GroupSlot, float]:
    """Return every finite float in the parameter groups: learning rates, betas, weight decays.

    Infinity and what is no number are constants of a capture: a symbol for one would not be equal to it.
    """
    found: dict[GroupSlot, float] = {}
    for slot, value in group_entries(training):
        if _is_finite(value):
            found[slot] = float(value)  # NumPy's are floats, too
        elif isinstance(value, (tuple, list)):
            found |= {replace(slot, element=at): float(item) for at, item in enumerate(value) if _is_finite(item)}
    return found


def group_entries(training: Training) -> Iterator[tuple[GroupSlot, object]]:
    """Yield what parameter groups have beside their parameters, by slot."""
    for index, optimizer in enumerate(training.optimizers):
        for at, group in enumerate(optimizer.param_groups):
            yield from ((GroupSlot(index, at, key), item) for key, item in group.items() if key != "params")


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, float) and isfinite(value)


def trained(training: Training) -> dict[ParameterSlot, bool]:
    """Return of which parameters gradients are asked for."""
    return {slot: parameter.requires_grad for slot, parameter in parameters(training).items()}


def set_trained(training: Training, flags: Mapping[ParameterSlot, bool]) -> None:
    """Ask for the gradients of parameters, or no more."""
    for slot, flag in flags.items():
        _parameter(slot, training).requires_grad_(flag)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a tensor of this shape is spread over a mesh."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size

    @staticmethod
    def of(tensor: DTensor) -> "Spread":
        """Return how a DTensor is spread."""
        return Spread(tensor.device_mesh, tuple(tensor.placements), tensor.shape)

    def around(self, part: Tensor) -> Tensor:
        """Return the whole tensor of which this worker has a part; its dimensions lie in the order of the part's."""
        order = order_of(part.shape, part.stride())
        stride = part.stride() if part.shape == self.shape else dense_strides(self.shape, order)
        given = {"run_check": False, "shape": self.shape, "stride": stride}
        return DTensor.from_local(part, self.mesh, self.placements, **given)


def local(tensor: Tensor) -> Tensor:
    """Return what this process has of a tensor: its part of one that is spread over a mesh, else the tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def read(slot: StateSlot, training: Training) -> Tensor | float | None:
    """Return what hangs in `slot` now."""
    match slot:
        case ParameterSlot():
            return _parameter(slot, training)
        case BufferSlot(model, name):
            module, last = _place(training, model, name)
            return module._buffers[last]
        case GradientSlot(parameter):
            return _parameter(parameter, training).grad
        case OptimizerSlot(optimizer, parameter, key):
            return training.optimizers[optimizer].state[_parameter(parameter, training)].get(key)
        case GroupSlot(optimizer, group, key, element):
            value = training.optimizers[optimizer].param_groups[group].get(key)
            return value if element is None or value is None else value[element]
        case OutsideSlot(location=location):
            found = location.read()
            return found if isinstance(found, int | float) else None


def put(slot: StateSlot, value: Tensor | float | SymFloat | SymInt | None, training: Training) -> None:
    """Hang a tensor, or a number of an optimizer, in `slot`; None empties it."""
    match slot:
        case BufferSlot(model, name):
            module, last = _place(training, model, name)
            assert value is None or isinstance(value, Tensor), "a buffer is a tensor"
            module._buffers[last] = value
        case GradientSlot(parameter):
            assert value is None or isinstance(value, Tensor), "and so is a gradient"
            _parameter(parameter, training).grad = value
        case OptimizerSlot(optimizer, parameter, key):
            _put_entry(training.optimizers[optimizer].state[_parameter(parameter, training)], key, value)
        case GroupSlot(optimizer, group, key, element):
            entries = training.optimizers[optimizer].param_groups[group]
            _put_entry(entries, key, value if element is None else _with_element(entries[key], element, value))
        case OutsideSlot(location=location):
            location.write(value)
        case ParameterSlot():
            raise AssertionError(f"a captured step never exchanges {slot}")


def _put_entry(entries: dict[str, Any], key: str, value: object) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value


def _with_element(items: Sequence[object], element: int, value: object) -> Sequence[object]:
    """Return a tuple or a list with another element."""
    changed = [value if at == element else item for at, item in enumerate(items)]
    return tuple(changed) if isinstance(items, tuple) else changed


def _parameter(slot: ParameterSlot, training: Training) -> nn.Parameter:
    """Return the parameter in a slot; a quicker `nn.Module.get_parameter`."""
    module, last = _place(training, slot.model, slot.name)
    found = module._parameters[last]
    assert found is not None, f"{slot} has a parameter"
    return found


def _place(training: Training, model: int, name: str) -> tuple[nn.Module, str]:
    """Return the module that has a parameter or a buffer of this name in a model, and what it is called there."""
    module, last = training.models[model], name
    while "." in last:
        part, below = last.split(".", 1)
        if (child := module._modules.get(part)) is None:
            break  # some modules write whole paths into their tables
        module, last = child, below
    return module, last


@contextmanager
def preserved(training: Training) -> Iterator[None]:
    """Put everything that models and optimizers hold back as it was, however the block ends."""
    modules = list(dict.fromkeys(module for model in training.models for module in model.modules()))
    tables: list[dict[Any, Any]] = []
    for module in modules:
        tables += [module._parameters, module._buffers]
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    lists: list[list[Any]] = [optimizer.param_groups for optimizer in training.optimizers]
    lists += [group["params"] for group in groups if isinstance(group["params"], list)]
    sequences = [(found, list(found)) for found in lists]
    entries = [e for optimizer in training.optimizers for e in optimizer.state.values() if isinstance(e, dict)]
    tables += [*groups, *entries, *(optimizer.state for optimizer in training.optimizers)]
    tables += [vars(parameter) for parameter in parameters(training).values()]
    copies = [(table, dict(table)) for table in tables]
    grads = [(p, p.grad, p.requires_grad) for p in parameters(training).values()]
    try:
        yield
    finally:
        for table, copy in copies:
            table.clear()
            table.update(copy)
        for found, copy in sequences:
            found[:] = copy
        with torch._C.DisableTorchFunction():
            for parameter, grad, requires_grad in grads:
                parameter.grad = grad
                if parameter.requires_grad != requires_grad:
                    parameter.requires_grad_(requires_grad)
