"""Where do the tensors of a step lie? All in memory of the CPU: what lies elsewhere is refused, with what to do."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outgrow.errors import Uncapturable
from outgrow.frontends.state import (
    BufferSlot,
    GradientSlot,
    GroupSlot,
    OptimizerSlot,
    ParameterSlot,
    StateSlot,
)


def check_devices(held: Mapping[StateSlot, Tensor], leaves: Sequence[object]) -> None:
    """Raise `Uncapturable` for the first tensor of models, optimizers and arguments that is not on the CPU."""
    for slot, tensor in held.items():
        _check(tensor.device, title(slot))
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            _check(leaf.device, f"an argument of shape {tuple(leaf.shape)}")


def check_result(name: str, tensor: Tensor) -> None:
    """Raise `Uncapturable` if what an op of this name makes is not on the CPU."""
    if tensor.device.type != "cpu":
        raise Uncapturable(
            f"the step makes a tensor on {tensor.device} ({name}), and outgrow plans for the CPU so far; keep the step "
            "on one device, or do this outside of it"
        )


def _check(device: torch.device, name: str) -> None:
    if device.type == "meta":
        raise Uncapturable(
            f"{name} is on meta and has no content; make it on the CPU, with outgrow.build if it does not fit there"
        )
    if device.type != "cpu":
        raise Uncapturable(
            f"{name} is on {device}, and outgrow trains on the CPU so far; move models, optimizer state and batch "
            "there, or train this step without outgrow"
        )


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
