"""Which steps does a workload take? A first one, and, if that makes state, one that finds it, again and again.

Both are captured without memory. What the first step leaves in the slots of models and optimizers has no contents
then, but for the counters that it begins: optimizers look at those.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.user.left.attributes import next_step
from outgrow.frontends.user.training.devices import CPU
from outgrow.frontends.user.training.state import OptimizerSlot, Training, preserved, put, set_trained, state_tensors
from outgrow.frontends.workloads.loading import blamed_on
from outgrow.frontends.workloads.unallocated import build_unallocated
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.graph import Role, Value


def capture_workload(function: Callable[..., Workload], settings: Mapping[str, object]) -> Captured:
    """Build a workload without memory and capture its first step, on its first batch. Nothing is run.

    Raises `InvalidWorkload` where the workload cannot be built, and `Uncapturable` where its step, or the
    function that builds it, needs the content of a tensor.
    """
    return _captured(build_unallocated(function, settings))


def capture_steps(function: Callable[..., Workload], settings: Mapping[str, object]) -> tuple[Captured, ...]:
    """As `capture_workload`; with the step that follows, on the same batch, if the first makes state of optimizers."""
    workload = build_unallocated(function, settings)
    first = _captured(workload)
    if not any(isinstance(item.slot, OptimizerSlot) for item in first.puts):
        return (first,)
    with _moved_on(Training((workload.model,), (workload.optimizer,)), first):
        return first, _captured(workload)


def _captured(workload: Workload) -> Captured:
    with blamed_on("the step cannot be captured"):
        return capture(workload.step, [workload.model], [workload.optimizer], tuple(workload.batches[0]), {})


@contextmanager
def _moved_on(training: Training, captured: Captured) -> Iterator[None]:
    """Let models and optimizers without memory hold what a captured step leaves; all is as before at the end."""
    mode = detect_fake_mode(list(state_tensors(training).values()))
    assert mode is not None, "a workload without memory has fake parameters"
    with preserved(training), next_step(captured.settled, ()):
        for item in captured.puts:
            if item.is_data:
                continue  # the tensor that is there has the same form
            if item.result is None:
                put(item.slot, item.number, training)
            elif _is_number(captured, item.result):
                pass  # it goes on, by whatever number is there
            elif item.number is not None:
                put(item.slot, _stand_in(captured, item.result).fill_(item.number), training)
            else:
                with mode:
                    put(item.slot, _stand_in(captured, item.result), training)
        set_trained(training, captured.flags)
        yield


def _value(captured: Captured, result: int) -> Value:
    return captured.graph.values[captured.graph.results[result]]


def _is_number(captured: Captured, result: int) -> bool:
    return captured.graph.storages[_value(captured, result).storage].role is Role.SCALAR


def _stand_in(captured: Captured, result: int) -> Tensor:
    """Return a tensor like a result of a captured step."""
    value = _value(captured, result)
    device = CPU if value.storage in captured.elsewhere else captured.device
    return torch.empty_strided(value.shape, value.strides, dtype=getattr(torch, value.dtype), device=device)
