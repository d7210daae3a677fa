"""A call on lists of tensors is captured as a call for each, with the bits of eager, and for all rates at once."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.utils._python_dispatch import TorchDispatchMode

from outgrow.frontends.fake.eager.eager_ways import as_in_eager
from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.fake.kernels.lists import each_by_itself
from outgrow.frontends.fake.looks.guessing import NOTHING_TOLD, Guessing
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from outgrow.ir.graph import Role
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by

aten = torch.ops.aten
FUSED = (
    partial(Adam, fused=True, amsgrad=True),
    partial(AdamW, fused=True),
    partial(SGD, lr=0.1, momentum=0.9, fused=True),
    partial(Adagrad, fused=True),
)
FOREACH = (partial(Adam, foreach=True), partial(SGD, lr=0.1, momentum=0.9, foreach=True))


def clipped(make: Callable[..., Any]) -> Job:
    """All gradients are clipped together, then all parameters are updated together."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 4))
    optimizer = make(model.parameters())

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), lambda: (torch.randn(4, 8),))


@pytest.mark.parametrize("make", [*FUSED, *FOREACH], ids=repr)
def test_no_op_of_an_update_needs_two_parameters(make: Callable[..., Any]) -> None:
    """Nor two gradients, so that each may be away while another one is updated."""
    job = clipped(make)
    batch = job.batch()
    job.step(*batch)
    captured = capture(job.step, job.models, job.optimizers, batch)
    graph = captured.graph
    for op in graph.ops:
        written = [name for name in graph.written(op) if graph.storages[name].role is Role.PARAMETER]
        assert len(written) <= 1, op
    assert sum(any(graph.storages[name].role is Role.PARAMETER for name in graph.written(op)) for op in graph.ops) >= 6


@pytest.mark.parametrize("make", FUSED, ids=repr)
def test_a_fused_optimizer_is_captured_for_all_rates(make: Callable[..., Any]) -> None:
    """One that a scheduler, or the loop, has changed is given to the same captured step."""
    job = clipped(make)
    batch = job.batch()
    job.step(*batch)
    captured, training = capture(job.step, job.models, job.optimizers, batch), Training(job.models, job.optimizers)
    job.optimizers[0].param_groups[0]["lr"] *= 0.37
    assert captured.guards_hold(training)


@pytest.mark.parametrize("make", [FUSED[1], FOREACH[0], partial(Adam, lr=torch.tensor(0.01), fused=True)], ids=repr)
def test_updates_of_lists_have_the_bits_of_eager(make: Callable[..., Any], disk_folder: Path) -> None:
    """In core and at the floor."""
    spill = Spill(OnDisk(disk_folder))
    try:
        for share in (1.0, 0.0):
            within = Within(share, spill)
            assert differences(left_by(lambda: clipped(make), within), left_by(lambda: clipped(make), eager)) == []
    finally:
        spill.close()


class Calls(TorchDispatchMode):
    """Notes how long the lists are that operators are given."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        del types
        if isinstance(args[0], list):
            self.lengths.append(len(args[0]))
        return func(*args, **(kwargs or {}))


def lengths(func: Any, *args: object) -> list[int]:
    with Calls() as calls:
        each_by_itself(func)(*args)
    return calls.lengths


def on_a_device(*strides: Sequence[int]) -> list[Tensor]:
    """Tensors of 2 x 2 on a device whose kernels take lists."""
    return [torch.empty_strided((2, 2), stride, device="meta") for stride in strides]


def test_a_list_of_which_a_kernel_would_take_some_is_left_whole() -> None:
    """On a GPU; whether it takes the list is asked of all together. On a CPU it goes from one to the next."""
    rows, columns = (2, 1), (1, 2)
    add = aten._foreach_add_.List
    assert lengths(add, on_a_device(rows, columns), on_a_device(rows, columns)) == [1, 1]
    assert lengths(add, on_a_device(rows, columns), on_a_device(columns, rows)) == [1, 1]
    assert lengths(add, on_a_device(rows, columns), on_a_device(rows, rows)) == [2]
    assert lengths(add, [torch.ones(2), torch.ones(2, 2).T], [torch.ones(2), torch.ones(2, 2)]) == [1, 1]


def test_gradients_on_a_gpu_are_clipped_together() -> None:
    """As in eager, whose norms of lists are summed otherwise; what is traced has no memory there."""
    asked: Any = clip_grad
    mode = FakeMode()
    mode.guessing = Guessing(NOTHING_TOLD)
    with mode, as_in_eager(mode, caches_casts=True):
        gpu, host = torch.device("cuda"), torch.device("cpu")
        assert asked._has_foreach_support([torch.empty(2, device=gpu)], gpu)
        assert not asked._has_foreach_support([torch.empty(2)], host)


def test_what_cannot_be_told_for_each_tensor_is_left_whole() -> None:
    """A tensor with a number for each, and lists of other lengths; scalars in a list are told."""
    xs = [torch.ones(2), torch.ones(3)]
    assert lengths(aten._foreach_addcmul_.Tensor, xs, xs, xs, torch.ones(2)) == [2]
    assert lengths(aten._foreach_addcmul_.ScalarList, xs, xs, xs, [1.0, 2.0]) == [1, 1]
    assert lengths(aten._foreach_add_.ScalarList, [xs[0]], [1.0]) == [1]
    assert each_by_itself(aten._fused_rms_norm.default) is aten._fused_rms_norm.default  # its list is a shape
    assert each_by_itself(aten._fused_adam.default) is aten._fused_adam.default  # it returns several lists
    found = each_by_itself(aten._foreach_norm.Scalar)(xs)
    assert isinstance(found, list)
    assert all(map(torch.equal, found, aten._foreach_norm.Scalar(xs)))
