"""How do others train within the same memory? Each rival in a process of its own, under the limit of our row.

    checkpoint           torch.utils.checkpoint, or transformers' own, around every block that the network repeats
    save_on_cpu          torch.autograd.graph.save_on_cpu around the step, to page-locked memory
    checkpoint_on_cpu    both
    offload_activations  torchtune's OffloadActivations around the step, where that is installed
    fsdp_offload         FSDP2 with CPUOffloadPolicy in a group of one process, and checkpoints; Adam is fused there
    compile_budget       torch.compile with an activation_memory_budget, the fastest of those that fit
    compile_in_core      torch.compile, where the step fits
    ours_compiled        no rival: outgrow with compiled kernels
    ours_by_parts        no rival: outgrow as the backend of torch.compile, in a loop that stays as it was

A rival that runs out of memory has no speed: it does not fit. The blocks of a ResNet are its bottlenecks and not its
stages: that repeats as much, and holds less. FSDP wants its weights contiguous, also those of convolutions.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch._functorch.config
from gpu_grounds import Ground, outgrown_on
from gpu_rows import PLANNING, TIMED, WARM, Asked, on, take
from gpu_trainings import Training, step_of
from torch import distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import SGD, Optimizer

from outgrow.errors import DeviceFull, Infeasible

RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)


def rivalled(ground: Ground, asked: Asked) -> dict[str, Any]:
    """Return the seconds of a rival's step within a budget, or why there are none."""
    try:
        return RIVALS[asked.who](ground, asked)
    except (torch.OutOfMemoryError, DeviceFull, Infeasible) as error:
        return {"reason": f"does not fit: {str(error).splitlines()[0]}"}
    except ImportError as error:
        return {"reason": f"is not installed: {error}"}


def _measured(
    ground: Ground, asked: Asked, training: Training, around: AbstractContextManager[Any], *, before: int = WARM
) -> dict[str, Any]:
    """Take the steps of a training, as somebody has changed it, within the budget; those `before` are not timed."""
    ground.limit(asked.budget_bytes)
    step = step_of(training.loss, training.optimizer)
    batch = on(ground.device, training.batch)
    with around:
        taken = take(ground, step, batch, before + TIMED)
    return {"seconds": taken.usual_seconds, "reserved_bytes": taken.reserved_bytes, "step_seconds": taken.seconds}


def _checkpoint(ground: Ground, asked: Asked) -> dict[str, Any]:
    training = asked.made(ground.device)
    training.checkpoint()
    return _measured(ground, asked, training, nullcontext())


def _save_on_cpu(ground: Ground, asked: Asked) -> dict[str, Any]:
    return _measured(ground, asked, asked.made(ground.device), _saving_on_cpu(ground))


def _checkpoint_on_cpu(ground: Ground, asked: Asked) -> dict[str, Any]:
    training = asked.made(ground.device)
    training.checkpoint()
    return _measured(ground, asked, training, _saving_on_cpu(ground))


def _saving_on_cpu(ground: Ground) -> AbstractContextManager[Any]:
    return torch.autograd.graph.save_on_cpu(pin_memory=ground.device.type == "cuda")


def _offload_activations(ground: Ground, asked: Asked) -> dict[str, Any]:
    from torchtune.training import OffloadActivations  # pyright: ignore[reportMissingImports]

    return _measured(ground, asked, asked.made(ground.device), OffloadActivations())


def _fsdp_offload(ground: Ground, asked: Asked) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    made = asked.made(ground.device)
    made.checkpoint()
    made.optimizer.state.clear()  # it would keep what is offloaded on the device
    made.optimizer.param_groups.clear()
    made.model.to("cpu")
    for parameter in made.model.parameters():
        parameter.data = parameter.data.contiguous()
    policy = CPUOffloadPolicy(pin_memory=ground.device.type == "cuda")
    with _group_of_one(ground.device) as mesh:
        for module in (*made.blocks, made.model):
            fully_shard(module, mesh=mesh, offload_policy=policy)
        return _measured(ground, asked, replace(made, optimizer=_fused(made)), nullcontext())


def _fused(training: Training) -> Optimizer:
    """Return the optimizer of a training anew, without state, in one kernel if there is one for sharded tensors."""
    is_sgd = isinstance(training.optimizer, SGD)
    names = ("lr", "momentum") if is_sgd else ("lr", "betas", "eps", "weight_decay")
    chosen = {name: training.optimizer.defaults[name] for name in names}
    kind: Any = type(training.optimizer)
    return kind(training.model.parameters(), **chosen, fused=None if is_sgd else True)


@contextmanager
def _group_of_one(device: torch.device) -> Iterator[DeviceMesh]:
    """Yield the mesh of this process alone, which asks no network but the loopback for anything."""
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh(device.type, (1,))
    finally:
        distributed.destroy_process_group()


def _compile_budget(ground: Ground, asked: Asked) -> dict[str, Any]:
    found: dict[float, dict[str, Any]] = {}
    for ratio in RATIOS:
        made = None  # the last one goes before the next one is made, which has no limit
        ground.limit(None)
        made = asked.made(ground.device)
        made.model.compile()
        with torch._functorch.config.patch(activation_memory_budget=ratio):  # noqa: SLF001 - it has no public name
            try:
                found[ratio] = _measured(ground, asked, made, nullcontext())
            except torch.OutOfMemoryError:
                continue
            finally:
                torch.compiler.reset()
    if not found:
        return {"reason": f"does not fit with any of {RATIOS}"}
    best = min(found, key=lambda ratio: found[ratio]["seconds"])
    return {**found[best], "ratio": best}


def _compile_in_core(ground: Ground, asked: Asked) -> dict[str, Any]:
    made = asked.made(ground.device)
    made.model.compile()
    return _measured(ground, asked, made, nullcontext())


def _ours_compiled(ground: Ground, asked: Asked) -> dict[str, Any]:
    made = asked.made(ground.device)
    ground.limit(asked.budget_bytes)
    with closing(outgrown_on(ground, made, asked.budget_bytes, kernels="inductor")) as step:
        taken = take(ground, step, on(ground.device, made.batch), PLANNING + TIMED)
    return {"seconds": taken.usual_seconds, "reserved_bytes": taken.reserved_bytes, "step_seconds": taken.seconds}


def _ours_by_parts(ground: Ground, asked: Asked) -> dict[str, Any]:
    from outgrow.frontends.dynamo import InPlace
    from outgrow.frontends.preparing.settings import Settings

    made = asked.made(ground.device)
    InPlace(Settings.of(asked.budget_bytes)).compile(made.model)
    return _measured(ground, asked, made, nullcontext(), before=PLANNING)


RIVALS: Mapping[str, Callable[[Ground, Asked], dict[str, Any]]] = {
    "checkpoint": _checkpoint,
    "save_on_cpu": _save_on_cpu,
    "checkpoint_on_cpu": _checkpoint_on_cpu,
    "offload_activations": _offload_activations,
    "fsdp_offload": _fsdp_offload,
    "compile_budget": _compile_budget,
    "compile_in_core": _compile_in_core,
    "ours_compiled": _ours_compiled,
    "ours_by_parts": _ours_by_parts,
}
