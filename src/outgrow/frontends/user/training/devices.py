"""Where do the tensors of a step lie? In memory of the CPU, or on one GPU: what lies elsewhere is refused by name.

The step of a model on a GPU may have small tensors on the CPU beside it: an optimizer counts its steps there, and a
batch may begin there. They stay where they are.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from outgrow.errors import Uncapturable
from outgrow.frontends.user.training.state import StateSlot, Training, local, state_tensors, title
from outgrow.ir.graph import Graph
from outgrow.units import format_bytes

CPU = torch.device("cpu")
_MOST_BYTES = 1 << 20
"""The largest tensor that a step on a GPU may make in memory of the CPU: numbers, not activations."""


def check_devices(held: Mapping[StateSlot, Tensor], leaves: Sequence[object]) -> torch.device:
    """Return the device of a step with these tensors of models and optimizers, and these arguments.

    Raises `Uncapturable` for the first of them on a device that is not allowed.
    """
    batch = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    names = [(f"an argument of shape {tuple(leaf.shape)}", leaf.device) for leaf in batch]
    found = [(title(slot), tensor.device) for slot, tensor in held.items()]
    for name, device in (*found, *names):
        _check(device, name)
    home = device_of(device for _, device in found or names)
    for name, device in (*found, *names):
        if device not in (CPU, home):
            raise Uncapturable(
                f"{name} is on {device}, and the model is on {home}; keep model and batch on one device, or divide the "
                "step with a mesh"
            )
    return home


def device_of(devices: Iterable[torch.device]) -> torch.device:
    """Return the device of a step whose tensors are on these devices: the first that is no CPU, if there is one."""
    return next((device for device in devices if device != CPU), CPU)


def home_of(training: Training) -> torch.device:
    """Return the device on which models and optimizers have their tensors."""
    return device_of(local(tensor).device for tensor in state_tensors(training).values())


def elsewhere_of(devices: Mapping[str, torch.device], home: torch.device, graph: Graph) -> frozenset[str]:
    """Return the storages of a graph that are not on the device `home` of the step.

    Raises `Uncapturable` for one that can be neither there nor on the CPU, and for a large one that the step makes.
    """
    for name in graph.storages.keys() & devices.keys():
        device, size = devices[name], graph.storages[name].size_bytes
        if device not in (CPU, home):
            raise Uncapturable(
                f"the step makes a tensor on {device} ({name}), and its model is on {home}; keep the step on one "
                "device, or do this outside of it"
            )
        if device != home and name in graph.born_at and size > _MOST_BYTES:
            raise Uncapturable(
                f"the step makes {format_bytes(size)} in memory of the CPU ({name}), and its model is on {home}; "
                "leave it there: outgrow moves what does not fit"
            )
    return frozenset(name for name in graph.storages.keys() & devices.keys() if devices[name] != home)


def _check(device: torch.device, name: str) -> None:
    if device.type == "meta":
        raise Uncapturable(
            f"{name} is on meta and has no content; make it on the CPU, with outgrow.build if it does not fit there"
        )
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise Uncapturable(
            f"{name} is on {device}, and outgrow trains on the CPU and on GPUs of CUDA that torch finds; move models, "
            "optimizer state and batch there, or train this step without outgrow"
        )


def generators_of(device: torch.device) -> tuple[torch.Generator, ...]:
    """Return the generators from which a step on a device may draw: that of the CPU, and that of a GPU."""
    if device.type == "cuda":
        return (torch.default_generator, torch.cuda.default_generators[device.index or 0])
    return (torch.default_generator,)
