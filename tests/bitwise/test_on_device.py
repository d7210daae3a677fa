"""In an arena of planned addresses beside streams that run late, a step leaves the bits that the eager step leaves."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import outgrow
from outgrow import Infeasible, Workload
from outgrow.errors import DeviceFull, DeviceLost, TierFailure
from outgrow.frontends.compile import Step, compile_workload
from outgrow.frontends.platforms import on_device
from outgrow.frontends.platforms.on_device import OnDevice
from outgrow.frontends.preparing import rehearsal
from outgrow.frontends.preparing.rehearsal import Rehearsal
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import ParameterSlot, Training, state_tensors
from outgrow.ir.graph import Graph, Op
from outgrow.remarks import Remark
from outgrow.runtime import directed, process
from outgrow.runtime.device import Cuda, segment_bytes
from outgrow.runtime.execute import Run
from outgrow.runtime.pages import Pages
from outgrow.runtime.pool import HostPool
from outgrow.runtime.program import Call
from outgrow.runtime.resting import extent_of, resident_bytes
from tests.bitwise.models import pooled, resnet, transformer
from tests.bitwise.test_budgets import Trained, differences, trained
from tests.runtime.stand_in import HostMapper, StandIn, Threads, sleepy

pytestmark = pytest.mark.usefixtures("caches_of_its_own")
PAGE = 1 << 14


class Log:
    """Where the step of `guarded` puts what it computes."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.kept: list[Tensor] = []
        self.total = 0.0


def guarded(log: Log | None = None) -> Workload:
    """A perceptron that leaves out a batch whose loss is no number, as that of every third one, and keeps a log."""
    torch.manual_seed(0)
    blocks = [module for _ in range(6) for module in (nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1))]
    model = nn.Sequential(*blocks, nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    noted = log or Log()

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if not torch.isfinite(loss):
            return torch.zeros_like(loss)
        loss.backward()
        optimizer.step()
        noted.losses.append(loss.item())
        noted.kept.append(loss.detach())
        noted.total += loss.item()
        return loss

    factors = (1.0, float("nan"), 1.0)
    batches = [(torch.randn(512, 512) * factor, torch.randint(0, 10, (512,))) for factor in factors]
    return Workload(model, optimizer, step, batches)


CASES = (
    *((resnet, "56MiB", PAGE), (pooled, "78MiB", PAGE), (transformer, "33MiB", PAGE), (guarded, "14MiB", PAGE)),
    (resnet, "56MiB", 0),
)
"""Budgets a little above the floor once the state exists: half of the peak in core, and less."""


BUDGET = 58 << 20


def on(device: StandIn, workload: Workload, budget: int | str, **options: str) -> Step:
    """The step of a workload on a device."""
    training = Training((workload.model,), (workload.optimizer,))
    return Step(workload.step, training, Settings.of(budget, **options), name="", device=device)


@pytest.mark.parametrize(("make", "budget", "page"), CASES)
@pytest.mark.usefixtures("several_threads")
def test_planned_addresses_leave_the_bits_of_eager(make: Callable[[], Workload], budget: str, page: int) -> None:
    """Losses, state and generator; what is taken is within the budget; every result is born where it is to live."""
    eager = make()
    expected = trained(eager, eager.step)
    ours = make()
    step = on(StandIn(Threads(pauses=sleepy(1)), page_bytes=page), ours, budget)
    found = trained(ours, step)
    assert differences(found, expected) == []
    assert found.rewritten
    assert step.plan.bytes_swapped > 0
    assert step.traces.measured is not None
    assert step.traces.measured.peak_bytes <= step.plan.predicted.peak_bytes
    assert _arena_bytes(step) + _resident_bytes(ours) <= step.current.budget.limit_bytes
    assert _misplaced(step) == 0


def test_what_was_taken_in_vain_is_no_part_of_the_baseline() -> None:
    """An allocator may keep what earlier work freed; a step has that memory too, and within its budget it counts."""
    ours, device = resnet(), StandIn(cached=1 << 30)
    step = on(device, ours, "56MiB")
    assert device.cached == 0
    trained(ours, step)
    assert step.process_bytes >= _arena_bytes(step)


def test_a_device_needs_no_figures_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that tells little of a process, as that of a sandbox, is enough where the budget is a device's."""
    (tmp_path / "status").write_text("Name:\tpython\nVmSize:\t9000 kB\nVmRSS:\t8000 kB\n")
    for name, file in (("_STATUS", "status"), ("_CLEAR_REFS", "clear_refs"), ("_GROUPS", "groups")):
        monkeypatch.setattr(process, name, str(tmp_path / file))
    ours = resnet()
    step = on(StandIn(), ours, "56MiB")
    trained(ours, step)
    assert step.plan.bytes_swapped > 0


def test_the_floor_has_a_plan() -> None:
    """The budget that a refusal names is enough for the step, with the holes between addresses."""
    budget, refusals = 1 << 20, 0
    while refusals <= 2:  # without optimizer state, and with it
        ours = resnet()
        step = on(StandIn(), ours, budget)
        try:
            trained(ours, step)
        except Infeasible as refusal:
            assert "With the holes between addresses the step needs" in str(refusal)
            budget, refusals = refusal.floor_bytes, refusals + 1
            continue
        assert refusals > 0
        return
    raise AssertionError("the budgets that were named are too small")


def test_a_budget_beyond_the_device_is_told() -> None:
    """Its own memory counts, not that of the machine."""
    ours = resnet()
    with pytest.warns(Remark, match=r"budget of 2\.00 GiB is more than cpu has: 1\.00 GiB"):
        on(StandIn(memory_bytes=1 << 30), ours, "2GiB")


def test_ample_room_does_not_raise_the_floor() -> None:
    """A step has the holes of what it takes, not of all that it may take."""
    floors: list[int] = []
    for budget in ("1GiB", "1TiB"):
        ours = resnet()
        step = on(StandIn(), ours, budget)
        step(*ours.batches[0])
        floors.append(step.plan.floor_bytes)
    assert floors[1] < 1.1 * floors[0]


def _arena_bytes(step: Step) -> int:
    platform = step._platform
    assert isinstance(platform, OnDevice)
    return platform._arena.size_bytes


def _misplaced(step: Step) -> int:
    """How many results were born elsewhere and copied, over all runs."""
    platform = step._platform
    assert isinstance(platform, OnDevice)
    return platform._arena.misplaced


def _resident_bytes(workload: Workload) -> int:
    """Of a batch and what is trained, what does not rest in the host's memory; what does comes into the arena."""
    state = state_tensors(Training((workload.model,), (workload.optimizer,)))
    return resident_bytes(item.untyped_storage() for item in (*state.values(), *workload.batches[0]))


def test_without_a_directed_allocator_results_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the allocator cannot be told where results go, they are copied there: the same bits."""
    monkeypatch.setattr(on_device, "install", lambda _device: False)
    eager = resnet()
    expected = trained(eager, eager.step)
    ours = resnet()
    step = on(StandIn(), ours, "220MiB")
    assert differences(trained(ours, step), expected) == []
    assert _misplaced(step) > 0


def test_a_device_that_others_fill_is_named() -> None:
    """The arena is asked for before anything is changed; the message says how much is free."""
    ours = resnet()
    before = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    step = on(StandIn(most_bytes=1 << 20), ours, "64MiB")
    with pytest.raises(DeviceFull, match=r"1\.0 MiB are free"):
        trained(ours, step)
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.model.state_dict().items())


@pytest.mark.parametrize("getting_ready", ["machine_of", "Rehearsal.of", "BesideDevice.ready"])
def test_a_device_without_room_to_get_ready_is_named(getting_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures, tries ops or brings state home finds no memory; nothing is changed, and a later call goes well."""

    def full(*_args: object, **_options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    device = StandIn()
    ours, x = _small(device)
    before = [tensor.clone() for tensor in ours._training.models[0].parameters()]
    with monkeypatch.context() as others:
        others.setattr(f"outgrow.frontends.platforms.on_device.{getting_ready}", full)
        others.setattr(rehearsal, "_KNOWN", {})
        with pytest.raises(DeviceFull, match=r"too little memory left .* Tried to allocate 20\.00 MiB"):
            Step(ours._step, ours._training, Settings.of("2MiB"), name="", device=device)(x)
    assert all(map(torch.equal, before, ours._training.models[0].parameters()))
    ours(x)


def test_ops_are_tried_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a step of another shape is rehearsed, the arena is given back, and state rests if it leaves no room."""
    ours, device = resnet(), StandIn()
    budget = 90 << 20
    step = on(device, ours, budget)
    images, labels = ours.batches[0]
    step(images, labels)
    assert device.taken_bytes() > 0
    taken = StandIn.taken_bytes
    monkeypatch.setattr(StandIn, "taken_bytes", lambda self: taken(self) + budget)  # the state fills the budget
    seen: list[tuple[int, bool]] = []
    tried = Rehearsal._tried

    def noted(self: Rehearsal, *args: Any) -> object:
        rests = [extent_of(item.untyped_storage()) is not None for item in ours.model.parameters()]
        seen.append((taken(device), any(rests)))
        return tried(self, *args)

    monkeypatch.setattr(Rehearsal, "_tried", noted)
    with suppress(Infeasible):  # as it is, with the budget full
        step(images[:3], labels[:3])
    assert seen
    assert set(seen) == {(PAGE, True)}, "the page that nobody looks at stays"
    monkeypatch.undo()
    step(images, labels)
    assert not any(extent_of(item.untyped_storage()) for item in ours.model.buffers())


@pytest.mark.parametrize("taken_since", [0, 64 << 20])
def test_what_the_device_held_before_is_no_part_of_the_budget(
    taken_since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model that is larger than the budget sends no state away; what was taken since the step was made does."""
    model, x, device = nn.Linear(64, 64), torch.randn(512, 64), StandIn()
    device.rooms.append(1 << 30)
    platform = OnDevice(Settings.of("64MiB"), device)
    platform.baseline_bytes([])
    device.rooms.append(taken_since)
    rested = list[int]()
    monkeypatch.setattr(rehearsal, "_KNOWN", {})
    monkeypatch.setattr(platform._beside, "rest", lambda tensors: rested.append(len(tensors)))
    captured = capture(lambda x: model(x).sum(), [model], [], (x,))
    platform.make_room(captured.given(Training((model,), ()), (x,)))
    assert rested == ([2] if taken_since else [])


def _small(device: StandIn) -> tuple[Step, Tensor]:
    """A step near its floor that has run once, and its batch."""
    torch.manual_seed(0)
    model, x = nn.Linear(64, 64), torch.randn(512, 64)

    def step(x: Tensor) -> Tensor:
        loss = F.relu(model(x)).square().mean()
        loss.backward()
        return loss

    ours = Step(step, Training((model,), ()), Settings.of("2MiB"), name="", device=device)
    ours(x)
    return ours, x


def test_what_others_have_freed_is_given_back() -> None:
    """Torch keeps what an evaluation between two steps took; it is no overhead of the next step."""
    device = StandIn()
    ours, x = _small(device)
    ours(x)
    assert ours.process_bytes <= 2 << 20
    device.cached = 64 << 20
    for _ in range(2):
        ours(x)
        assert device.cached == 0
        assert ours.process_bytes <= 2 << 20


def test_nothing_is_left_of_a_program_that_is_forgotten() -> None:
    """Where its results go is told to no allocator any more, whoever asked where they went."""
    ours, _ = _small(StandIn())
    platform = ours._platform
    assert isinstance(platform, OnDevice)
    program = ours._entry.runnable.program
    directions = ref(platform._arena._directions[program])
    platform.forget(program)
    assert directions() is None


def test_ops_that_only_a_plan_has_are_tried_without_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later plan may have other ones than the first; what the arena takes is free for them."""
    device = StandIn()
    ours, x = _small(device)
    assert device.taken_bytes() > PAGE
    tried, seen = Rehearsal._tried, list[int]()

    def noted(self: Rehearsal, *args: Any) -> object:
        seen.append(device.taken_bytes())
        return tried(self, *args)

    monkeypatch.setattr(Rehearsal, "_tried", noted)
    monkeypatch.setattr(rehearsal, "_KNOWN", {})
    ours._platform.program(ours._entry.captured, ours._entry.runnable.planned)
    assert set(seen) == {0}
    ours(x)


def test_what_cannot_be_tried_at_first_is_tried_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op for which the device has no room is planned from a model of it; whatever runs for it is tried then."""
    expected = trained(eager := resnet(), eager.step)
    tried, refused, later = Rehearsal._tried, set[str](), set[str]()

    def full(self: Rehearsal, graph: Graph, op: Op, *others: Any) -> object:
        if op.operator == "aten.convolution_backward.default":
            if op.captured not in refused:
                refused.add(op.captured)
                raise torch.OutOfMemoryError
            later.add(op.captured)
        return tried(self, graph, op, *others)

    monkeypatch.setattr(Rehearsal, "_tried", full)
    monkeypatch.setattr(rehearsal, "_KNOWN", {})
    ours = resnet()
    step = on(StandIn(), ours, "76MiB")
    assert differences(trained(ours, step), expected) == []
    assert refused
    assert refused <= later


def test_a_floor_that_is_more_than_the_device_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs at the floor cannot be tried then; the refusal names the floor of the plan."""

    def full(*_args: Any) -> object:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Rehearsal, "of", full)
    ours = resnet()
    with pytest.raises(Infeasible, match="below the floor"):
        trained(ours, on(StandIn(), ours, "1MiB"))


def test_segments_of_the_allocator() -> None:
    """A large tensor has a segment of its own; those of up to 1 MiB share segments of 2 MiB, others of 20 MiB."""
    mib = 1 << 20
    assert segment_bytes([]) == 0
    assert segment_bytes([12 * mib + 1]) == 14 * mib
    assert segment_bytes([1, 1000, mib]) == 2 * mib
    assert segment_bytes([mib, mib, 1]) == 4 * mib
    assert segment_bytes([8 * mib, 8 * mib, 8 * mib]) == 40 * mib
    assert segment_bytes([8 * mib, 100, 12 * mib, 8 * mib]) == (20 + 2 + 12) * mib


def test_the_host_budget_is_kept() -> None:
    """A plan that moves more than the host may hold is refused, with both sizes."""
    ours = resnet()
    with pytest.raises(TierFailure, match=r"host budget is 4\.0 KiB"):
        trained(ours, on(StandIn(), ours, "56MiB", host_budget="4KiB"))


def on_gpu(workload: Workload) -> Workload:
    """The workload with its model and batches on the GPU."""
    workload.model.to("cuda")
    return replace(workload, batches=[tuple(tensor.cuda() for tensor in batch) for batch in workload.batches])


def test_what_a_step_gathers_is_that_of_eager() -> None:
    """Numbers and tensors that it leaves in a log, as far as it has not left a batch out."""
    expected, found = Log(), Log()
    eager, ours = guarded(expected), guarded(found)
    trained(eager, eager.step)
    trained(ours, on(StandIn(Threads(pauses=sleepy(1)), page_bytes=PAGE), ours, "14MiB"))
    assert found.losses == expected.losses != []
    assert [item.tolist() for item in found.kept] == [item.tolist() for item in expected.kept]
    assert found.total == expected.total


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:The step reads")
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("make", [resnet, transformer, guarded], ids=lambda make: make.__name__)
def test_a_gpu_leaves_the_bits_of_eager(make: Callable[[], Workload]) -> None:
    """Losses, parameters and state at a budget near the floor; what is reserved stays within the budget."""
    eager = on_gpu(make())
    expected = trained(eager, eager.step)
    budget = 1 << 20
    for _ in range(5):
        ours = on_gpu(make())
        torch.cuda.empty_cache()
        step = outgrow.compile(ours.step, model=ours.model, optimizer=ours.optimizer, memory_budget=budget)
        try:
            found = trained(ours, step)
        except Infeasible as refusal:
            budget = refusal.floor_bytes + (refusal.floor_bytes >> 4)
            step.close()
            continue
        others = differences(found, expected)  # a name of its own: pytest would write down all tensors otherwise
        assert others == []
        assert found.rewritten
        assert _misplaced(step) == 0
        assert step.process_bytes <= budget
        return
    raise AssertionError("a step runs within the floor that it names, or names a higher one once its state exists")


@pytest.mark.cuda
def test_a_workload_on_a_gpu_has_the_baseline_of_the_gpu() -> None:
    """What the process takes of the host's memory, as the command line tells before the model is there, is no part."""
    ours = on_gpu(resnet())
    step = compile_workload(ours, memory_budget="2GiB", baseline_bytes=1 << 40)
    step(*ours.batches[0])
    assert step.process_bytes > 0


@pytest.mark.cuda
def test_the_allocator_of_a_gpu_is_directed() -> None:
    """Without it all is right, but results are copied and scratch lies beside the arena: that is to be known."""
    assert directed.install(torch.device("cuda", 0))


@pytest.mark.cuda
def test_memory_of_the_host_is_locked() -> None:
    """Copies to and from it go on beside the host."""
    pool = HostPool(torch.device("cuda", 0), Cuda().lock)
    pool.grow(1 << 20)
    assert pool.is_locked
    assert pool.bytes(pool.seam_bytes, 1 << 10).is_pinned()


@pytest.mark.cuda
def test_a_gpu_that_is_full_is_named() -> None:
    """The message says what is needed and how much is free."""
    with pytest.raises(DeviceFull, match="are free"):
        Cuda().room(1 << 42)


@pytest.mark.cuda
def test_numbers_that_are_read_from_a_gpu_are_remarked() -> None:
    """The host waits for them in every step, as for the counters of an optimizer that lie there."""
    model = nn.Linear(256, 256).cuda()
    model.register_buffer("scale", torch.full((), 2.0, device="cuda"))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean() * model.get_buffer("scale").item()
        loss.backward()
        return loss.detach()

    captured = capture(step, [model], [], (torch.ones(16, 256, device="cuda"),))
    with pytest.warns(Remark, match="reads 1 numbers from the GPU"):
        OnDevice(Settings.of("1GiB"), Cuda()).known(captured, lambda _what, _fraction: None)


def wide() -> Workload:
    """A perceptron whose weights and Adam state, 97 MiB, are more than the budget of the tests."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Workload(model, optimizer, step, [(torch.randn(64, 1024), torch.randint(0, 10, (64,))) for _ in range(2)])


def _trained_near(budget: int) -> tuple[Workload, Step, Trained]:
    """Train the perceptron within a budget, or within the next that a refusal names."""
    for _ in range(5):
        ours = wide()
        step = on(StandIn(Threads(pauses=sleepy(5))), ours, budget)
        try:
            return ours, step, trained(ours, step)
        except Infeasible as refusal:
            budget = refusal.floor_bytes
    raise AssertionError("a step runs within the floor that it names, or names a higher one once its state exists")


def test_state_rests_in_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and optimizer state of more than the budget; between steps all can be read, and at the end too.

    When it comes home in the end, the arena has made room.
    """
    eager = wide()
    expected = trained(eager, eager.step)
    ours, step, found = _trained_near(66 << 20)
    assert differences(found, expected) == []
    held = {tensor.data_ptr(): tensor for tensor in found.state.values() if extent_of(tensor.untyped_storage())}
    assert sum(tensor.nbytes for tensor in held.values()) >= 8 << 20
    saved = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    home, taken = HostPool.home, list[int]()

    def noted(pool: HostPool, offset: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        taken.append(step._platform.process_bytes())
        return home(pool, offset, storage)

    monkeypatch.setattr(HostPool, "home", noted)
    step.close()
    assert set(taken) == {PAGE}, "the page that nobody looks at stays"
    assert differences(found, expected) == []
    assert not any(extent_of(tensor.untyped_storage()) for tensor in found.state.values())
    assert all(torch.equal(saved[name], tensor) for name, tensor in ours.model.state_dict().items())


def test_what_has_no_room_on_the_device_stays_in_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the end as much comes home as there is room for; the rest is told, and can be read where it is."""
    _, step, found = _trained_near(66 << 20)
    held = [tensor for tensor in found.state.values() if extent_of(tensor.untyped_storage())]
    expected = [tensor.clone() for tensor in held]
    home, left = HostPool.home, [2]

    def full(pool: HostPool, offset: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        if not left[0]:
            raise torch.OutOfMemoryError
        left[0] -= 1
        return home(pool, offset, storage)

    monkeypatch.setattr(HostPool, "home", full)
    with pytest.warns(UserWarning, match="no room for all of the model"):
        step.close()
    assert sum(extent_of(tensor.untyped_storage()) is None for tensor in held) == 2
    assert all(torch.equal(one, other) for one, other in zip(held, expected, strict=True))


def test_what_comes_home_is_made_way_for() -> None:
    """A plan that moves other things may want on the device what rested for the one before it."""
    ours, step, _ = _trained_near(66 << 20)
    program, captured = step._entry.runnable.program, step._entry.captured
    tensors = captured.given(step._training, ours.batches[0]).tensors
    name = min(name for name in program.stowed if extent_of(tensors[name].untyped_storage()))
    asked, wanting = list[int](), replace(program, stowed=program.stowed - {name})
    assert isinstance(step._platform, OnDevice)
    step._platform._beside.ready(wanting, tensors, asked.append)
    assert asked == [tensors[name].nbytes]
    assert extent_of(tensors[name].untyped_storage()) is None


@pytest.mark.parametrize("width", [8, 512])
@pytest.mark.parametrize("criterion", [nn.functional.mse_loss, nn.functional.smooth_l1_loss])
def test_a_loss_that_holds_what_it_was_summed_from_is_made_small(
    criterion: Callable[..., torch.Tensor], width: int
) -> None:
    """It outlives the step, so it is no scratch of the operator that makes it."""
    torch.manual_seed(0)
    model, x = nn.Linear(width, width), torch.randn(2 * width, width)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = criterion(model(x), x)
        loss.backward()
        return loss

    expected = step(x).detach().clone()
    model.zero_grad()
    ours = Step(step, Training((model,), ()), Settings.of("16MiB"), name="", device=StandIn())
    for _ in range(2):
        loss = ours(x)
        assert torch.equal(loss, expected)
        assert loss.untyped_storage().nbytes() == loss.nbytes


def test_a_failed_step_leaves_state_that_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first update all is as before the step, wherever it was just then; later steps go on from there."""
    eager = wide()
    expected = trained(eager, eager.step)
    budget = _trained_near(66 << 20)[1].current.budget.limit_bytes
    ours = wide()
    step = on(StandIn(Threads(pauses=sleepy(6))), ours, budget + (budget >> 3))
    torch.manual_seed(1)
    step(*ours.batches[0])
    step(*ours.batches[1])
    before = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    with monkeypatch.context() as broken:
        broken.setattr(Run, "_call", failing(Run._call, calls=20))
        with pytest.raises(RuntimeError, match="the device is lost"):
            step(*ours.batches[0])
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.model.state_dict().items())
    step(*ours.batches[0])
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(tensor, expected.state[ParameterSlot(0, name)]), name


def test_a_device_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call in which it does, later ones and `close` say so, and not that a checkpoint helps this process."""
    device = StandIn()
    step, x = _small(device)
    with monkeypatch.context() as broken:
        broken.setattr(Run, "_call", failing(Run._call, calls=1))
        device.failed = "an illegal access"
        with pytest.raises(DeviceLost, match=r"has failed \(an illegal access\).*Start another process"):
            step(x)
    step._whole.tear()
    for call in (partial(step, x), step.close):
        with pytest.raises(DeviceLost, match="an illegal access"):
            call()


def test_pages_of_a_device_that_has_failed_go_silently() -> None:
    """Nobody is told a second time when what held them is gone."""

    class Lost(HostMapper):
        def settle(self) -> None:
            raise RuntimeError("the device is lost")

    pages = Pages(Lost(PAGE), torch.device("cpu"))
    pages.have(PAGE)
    pages.show([0])
    with pytest.raises(RuntimeError, match="is lost"):
        pages.close()
    del pages  # what a finalizer raises is an error of the test


@pytest.mark.cuda
def test_a_gpu_that_works_has_no_failure() -> None:
    """It is asked by waiting for it."""
    assert Cuda().failure() is None


def failing(call: Callable[[Run, Call], None], calls: int) -> Callable[[Run, Call], None]:
    """The function, which fails at the n-th call."""
    left = count(-calls)

    def run(self: Run, item: Call) -> None:
        if next(left) == 0:
            raise RuntimeError("the device is lost")
        call(self, item)

    return run


def test_nobody_begins_a_step_while_idle_ones_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that begin or end in other threads would change what is gone through."""
    begun: list[bool] = []

    def begin() -> bool:
        is_free = on_device._idle_lock.acquire(blocking=False)
        if is_free:
            on_device._idle_lock.release()
        return is_free

    class Watched(WeakSet[OnDevice]):
        def __iter__(self) -> Iterator[OnDevice]:
            with ThreadPoolExecutor(1) as pool:
                begun.append(pool.submit(begin).result())
            return super().__iter__()

    platform = OnDevice(Settings.of("1GiB"), StandIn())
    monkeypatch.setattr(on_device, "_known", Watched())
    assert platform.idle_bytes() == 0
    platform.baseline_bytes([])
    assert begun == [False, False]


@pytest.mark.parametrize("page", [PAGE, 0])
def test_steps_of_one_device_make_room_for_each_other(page: int) -> None:
    """One that trains and one that evaluates, under one budget that has no room for both of their arenas."""
    returned: list[list[Tensor]] = []
    high_waters: list[int] = []
    for device in (None, StandIn(page_bytes=page)):
        ours = resnet()
        images, labels = ours.batches[0]

        def evaluation(images: Tensor, labels: Tensor, model: nn.Module = ours.model) -> Tensor:
            with torch.no_grad():
                return F.cross_entropy(model(images), labels)

        train, evaluate = ours.step, evaluation
        if device is not None:
            train = on(device, ours, BUDGET)
            training = Training((ours.model,), ())
            evaluate = Step(evaluation, training, Settings.of(BUDGET), name="", device=device)
        torch.manual_seed(0)
        found: list[Tensor] = []
        for _ in range(4):
            found += [train(images, labels), train(images, labels), evaluate(images, labels)]
            if device is not None:
                assert device.taken_bytes() <= BUDGET
                high_waters += [step.process_bytes for step in (train, evaluate) if isinstance(step, Step)]
        returned.append([item.detach() for item in found])
    assert all(map(torch.equal, *returned))
    assert 0 < max(high_waters) <= BUDGET
