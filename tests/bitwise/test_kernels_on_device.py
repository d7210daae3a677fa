"""A step of compiled kernels on a device with planned addresses has the bits that these kernels have in core."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import outgrow
from outgrow import Infeasible, Workload
from outgrow.analysis.cost import COMPILED
from outgrow.frontends.compile import Step
from outgrow.frontends.platforms.on_device import OnDevice
from tests.bitwise.test_on_device import on, on_gpu
from tests.bitwise.test_repeated import left_by
from tests.frontends.lowering.test_inductor import Block
from tests.runtime.stand_in import StandIn, Threads, sleepy

pytestmark = pytest.mark.usefixtures("caches_of_its_own")
WIDTH = 256


def blocks() -> Workload:
    """Blocks of a norm, a product and a residual, whose activations are most of what they take."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(WIDTH) for _ in range(3)])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Workload(model, optimizer, step, [(torch.randn(4096, WIDTH), torch.randn(4096, WIDTH)) for _ in range(2)])


def _trained(budget: int) -> tuple[Step, list[Tensor]]:
    """Train within a budget, or within the next that a refusal names."""
    for _ in range(5):
        ours = blocks()
        step = on(StandIn(Threads(pauses=sleepy(3))), ours, budget, kernels="inductor")
        try:
            return step, left_by(ours, step)
        except Infeasible as refusal:
            budget = refusal.floor_bytes
    raise AssertionError("a step runs within the floor that it names, or names a higher one once its state exists")


def test_compiled_kernels_have_the_same_bits_at_their_floor() -> None:
    """The kernels are those that run in core, and their results are born where the plan says."""
    roomy, expected = _trained(1 << 40)
    tight, found = _trained(1 << 20)
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    for step in (roomy, tight):
        assert any(op.operator.startswith(COMPILED) for op in step.derived.ops)
    assert tight.plan.bytes_swapped > 0
    platform = tight._platform
    assert isinstance(platform, OnDevice)
    assert platform._arena.misplaced == 0


@pytest.mark.cuda
def test_kernels_of_a_gpu_have_the_same_bits_within_a_budget() -> None:
    """Half of what the step takes in ample room is enough, or what a refusal names."""
    pytest.importorskip("triton")
    roomy, expected = _trained_on_gpu(1 << 36)
    tight, found = _trained_on_gpu(roomy.plan.in_core_peak_bytes // 2)
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    assert any(op.operator.startswith(COMPILED) for op in tight.derived.ops)


def _trained_on_gpu(budget: int) -> tuple[Step, list[Tensor]]:
    for _ in range(5):
        ours = on_gpu(blocks())
        held = {"model": ours.model, "optimizer": ours.optimizer}
        step = outgrow.compile(ours.step, **held, memory_budget=budget, kernels="inductor")
        try:
            return step, left_by(ours, step)
        except Infeasible as refusal:
            budget = refusal.floor_bytes + (refusal.floor_bytes >> 4)
            step.close()
    raise AssertionError("a step runs within the floor that it names, or names a higher one once its state exists")
