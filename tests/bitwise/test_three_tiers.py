"""What has no room in memory of the host goes on to a disk, and a step leaves the bits that the eager step leaves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import pytest
import torch

import outgrow
from outgrow import Infeasible, Workload
from outgrow.errors import InvalidQuantity, TierFailure
from outgrow.frontends.compile import Step
from outgrow.frontends.platforms import beside_device
from outgrow.frontends.platforms.on_device import OnDevice
from outgrow.ir.machine import LinkRates
from outgrow.runtime import links, staged
from outgrow.runtime.below import FileBelow
from outgrow.runtime.pool import HostPool
from outgrow.runtime.resting import extent_of
from outgrow.runtime.tiers import DiskTier
from tests.bitwise.models import pooled, resnet
from tests.bitwise.test_on_device import on, on_gpu, wide
from tests.bitwise.test_repeated import STEPS, left_by, states
from tests.runtime.stand_in import StandIn, Threads, sleepy

pytestmark = pytest.mark.usefixtures("caches_of_its_own")
PIECE = 1 << 20


def clearing_first() -> Workload:
    """The perceptron whose step begins with `zero_grad`, so that gradients outlive it and are replaced by the next."""
    ours = wide()
    model, optimizer = ours.model, ours.optimizer

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return replace(ours, step=step)


CASES = (
    (resnet, 58, 24, False),
    (pooled, 68, 20, False),
    (wide, 90, 60, False),
    (wide, 70, 40, True),
    (clearing_first, 70, 70, True),
)
"""Budgets of the device, near the floor, and of the host, in MiB: less than leaves the device, whatever is computed
again. Whether the device reads what is on a disk."""


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are small, and so is what the rates of the disk are measured with."""
    monkeypatch.setattr(links, "MEASURED_BYTES", 1 << 20)
    monkeypatch.setattr(staged, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(beside_device, "BUFFERS_BYTES", 4 * PIECE)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk counts as a quick one, so that a plan moves to it whatever else runs."""
    monkeypatch.setattr(beside_device, "measure_link", lambda _folder: LinkRates(1e9, 1e9, 1e-4, half_duplex=False))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What pools of host memory take, all together, whenever one has grown."""
    grown: list[int] = []
    pools = WeakSet[HostPool]()
    grow = HostPool.grow

    def noted(pool: HostPool, capacity_bytes: int) -> None:
        grow(pool, capacity_bytes)
        pools.add(pool)
        grown.append(sum(pool.size_bytes for pool in pools))

    monkeypatch.setattr(HostPool, "grow", noted)
    return grown


def below(step: Step) -> FileBelow:
    """The file of a step that is below memory of the host."""
    platform = step._platform
    assert isinstance(platform, OnDevice)
    assert platform._beside.spill.below is not None
    assert platform._beside.spill.below.file is not None
    tier = platform._beside.spill.below.file.tier
    assert isinstance(tier, FileBelow)
    return tier


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize(("make", "mib", "host_mib", "reads"), CASES)
def test_three_tiers_leave_the_bits_of_eager(
    make: Callable[[], Workload], mib: int, host_mib: int, reads: bool, disk_folder: Path, host: list[int]
) -> None:
    """Losses, state and generator, over steps that run as others do and from a score; the host's budget is kept."""
    eager = make()
    expected = left_by(eager, eager.step)
    ours = make()
    options = {"host_budget": f"{host_mib}MiB", "offload_dir": str(disk_folder)}
    step = on(StandIn(Threads(pauses=sleepy(2)), reads_pages=reads), ours, mib << 20, **options)
    found = left_by(ours, step)
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    assert max(host) <= host_mib << 20
    if reads or make is not wide:
        assert below(step).capacity_bytes > 1 << 20
    extents = [extent for tensor in states(ours) if (extent := extent_of(tensor.untyped_storage())) is not None]
    deep = sum(extent.size_bytes for extent in extents if isinstance(extent.file.tier, FileBelow))
    assert sum(extent.size_bytes for extent in extents) - deep <= host_mib << 20
    assert (deep > 8 << 20) is reads
    assert make is not wide or len(extents) > 1
    step.close()
    assert [*map(torch.equal, states(ours), found[STEPS:])].count(False) == 0


@pytest.mark.usefixtures("quick_disk")
def test_a_disk_that_fails_is_named(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first update all is as before the step; what failed is said, and a later step has a new link."""
    ours = resnet()
    step = on(StandIn(), ours, 58 << 20, host_budget="24MiB", offload_dir=str(disk_folder))
    step(*ours.batches[0])
    step(*ours.batches[0])
    before = [tensor.clone() for tensor in ours.model.state_dict().values()]

    def broken(*_args: object) -> None:
        raise TierFailure("the disk is gone")

    with monkeypatch.context() as failing:
        failing.setattr(DiskTier, "write", broken)
        with pytest.raises(TierFailure, match="the disk is gone"):
            step(*ours.batches[0])
    assert all(map(torch.equal, ours.model.state_dict().values(), before))
    step(*ours.batches[0])


@pytest.mark.usefixtures("quick_disk")
def test_the_disk_budget_is_kept(disk_folder: Path) -> None:
    """A plan that moves more to the disk than it may hold is refused, with both sizes."""
    ours = resnet()
    options = {"host_budget": "24MiB", "disk_budget": "64KiB", "offload_dir": str(disk_folder)}
    step = on(StandIn(), ours, 58 << 20, **options)
    with pytest.raises(TierFailure, match=r"disk budget is 64\.0 KiB"):
        left_by(ours, step, 2)


def test_the_refusal_names_the_host_budget_that_was_given(disk_folder: Path) -> None:
    """It says which part of it buffers take, not what is left beside these."""
    ours = wide()
    step = on(StandIn(), ours, 70 << 20, host_budget="40MiB", offload_dir=str(disk_folder))
    with pytest.raises(TierFailure, match=r"host budget is 40\.0 MiB, of which buffers take 4\.0 MiB\. Raise"):
        left_by(ours, step, 2)


def test_a_disk_budget_without_a_file_is_refused() -> None:
    """Without a host budget, or with one that buffers of a file would take, nothing of a device goes to a disk."""
    for options in ({}, {"host_budget": "8MiB"}):
        with pytest.raises(InvalidQuantity, match="disk_budget is for a model on the CPU, or beside a host_budget"):
            on(StandIn(), resnet(), 58 << 20, disk_budget="1GiB", **options)


def test_a_folder_that_cannot_be_used_is_refused(disk_folder: Path) -> None:
    """At once, where the host's memory is limited."""
    file = disk_folder / "file"
    file.write_text("")
    with pytest.raises(TierFailure, match="is not a directory"):
        on(StandIn(), resnet(), 58 << 20, host_budget="24MiB", offload_dir=str(file))


@pytest.mark.cuda
def test_a_gpu_has_three_tiers(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step near its floor, of which most leaves through little memory of the host, has the bits of eager."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        eager = on_gpu(resnet())
        expected = left_by(eager, eager.step)
        step, found = _near_the_floor(disk_folder)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    assert below(step).capacity_bytes > 1 << 20


def _near_the_floor(folder: Path) -> tuple[Step, list[torch.Tensor]]:
    budget = 1 << 20
    for _ in range(5):
        ours = on_gpu(resnet())
        torch.cuda.empty_cache()
        step = outgrow.compile(
            ours.step,
            model=ours.model,
            optimizer=ours.optimizer,
            memory_budget=budget,
            host_budget="24MiB",
            offload_dir=folder,
            planner="nnabla_window",  # which repeats no work
        )
        try:
            return step, left_by(ours, step)
        except Infeasible as refusal:
            budget = refusal.floor_bytes + (refusal.floor_bytes >> 4)
            step.close()
    raise AssertionError("a step runs within the floor that it names, or names a higher one once its state exists")
