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
        check_device(tensor.device, _title(slot))
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            check_device(leaf.device, f"an argument of shape {tuple(leaf.shape)}")


def check_device(device: torch.device, title: str) -> None:
    """Raise `Uncapturable` if the device of what is called so is not the CPU."""
    if device.type == "meta":
        raise Uncapturable(
            f"{title} is on meta and has no content; make it on the CPU, with outgrow.build if it does not fit there"
        )
    if device.type != "cpu":
        raise Uncapturable(
            f"{title} is on {device}, and outgrow trains on the CPU so far; move models, optimizer state and batch "
            "there, or train this step without outgrow"
        )


def _title(slot: StateSlot) -> str:
    match slot:
        case ParameterSlot(name=name):
            return f"parameter {name!r}"
        case BufferSlot(name=name):
            return f"buffer {name!r}"
        case GradientSlot(parameter):
            return f"the gradient of {_title(parameter)}"
        case OptimizerSlot(parameter=parameter, key=key):
            return f"optimizer state {key!r} of {_title(parameter)}"
        case GroupSlot(optimizer=optimizer, group=group, key=key):
            return f"param_groups[{group}][{key!r}] of optimizer {optimizer}"
