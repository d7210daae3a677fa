"""Does a compiled step train like the step itself, whatever happens between two calls or in the middle of one?"""

import _thread
import copy
import errno
import gc
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import outgrow
from outgrow.errors import Infeasible, InvalidQuantity, OutOfTurn, TierFailure, TornState, Uncapturable
from outgrow.frontends import capturing, entries, guided, within_budget
from outgrow.frontends.platforms import on_cpu
from outgrow.frontends.platforms.on_cpu import OnCpu
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.runs import Shown
from outgrow.frontends.user.training.state import Training
from outgrow.ir.graph import SwapIn
from outgrow.remarks import Remark
from outgrow.runtime import arena, program
from outgrow.runtime.execute import Run
from outgrow.runtime.links import Link
from outgrow.runtime.numbered import Numbered
from outgrow.runtime.recording import Recording
from outgrow.runtime.rerun import Rerun
from outgrow.runtime.spill import Spill
from outgrow.units import MIB
from tests.children import ran
from tests.frontends.training import WIDTH, Job, Left, Scenario, Step, batch, differences, left, left_by, wide
from tests.runtime.memory import open_spill_files

AMPLE = "10TiB"
compile_anything: Callable[..., object] = outgrow.compile  # for arguments of types that it refuses
MOMENTUM = 0.9
Compile = Callable[..., outgrow.Step]


@pytest.fixture
def compiled(
    disk_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    plans_found_quickly: None,  # noqa: ARG001
) -> Iterator[Compile]:
    """Compile a job's step, for a machine whose rates need no measuring and without known costs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
    monkeypatch.setattr(on_cpu, "this_machine", lambda _folder: described_machine("xeon-2core-disk"))
    steps: list[outgrow.Step] = []

    def make(job: Job, budget: int | str, step: Step | None = None, **options: object) -> outgrow.Step:
        settings = {"offload_dir": disk_folder, **options}
        made = outgrow.compile(
            step or job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget, **settings
        )
        steps.append(made)
        return made

    yield make
    for step in steps:
        step.close()


@cache
def by_eager(scenario: Scenario, momentum: float) -> Left:
    """What a wide job leaves after a scenario without us."""
    job = wide(momentum=momentum)
    return left_by(scenario, job, job.step)


_floors: dict[tuple[int, float, str], int] = {}


@pytest.fixture
def short(compiled: Compile) -> Callable[..., int]:
    """A budget that is short for a wide job: so many MiB above the floor of its first step."""

    def budget(job: Job, above: int = 10, planner: str = "search") -> int:
        layers, momentum = len(job.model) // 4, job.optimizer.param_groups[0]["momentum"]
        if (layers, momentum, planner) not in _floors:
            refused = wide(layers=layers, momentum=momentum)
            with pytest.raises(Infeasible) as refusal:
                compiled(refused, MIB, planner=planner)(*refused.batches[0])
            _floors[layers, momentum, planner] = refusal.value.floor_bytes
        return _floors[layers, momentum, planner] + above * MIB

    return budget


# ---- What happens between two calls


def plain(job: Job, step: Step) -> list[object]:
    """Three batches, one after the other."""
    return [step(*pair) for pair in job.batches]


def learning_rate(job: Job, step: Step) -> list[object]:
    """The rate is lowered between steps."""
    returned: list[object] = []
    for rate, pair in zip((0.05, 0.02, 0.001), job.batches, strict=True):
        job.optimizer.param_groups[0]["lr"] = rate
        returned.append(step(*pair))
    return returned


def short_last_batch(job: Job, step: Step) -> list[object]:
    """An epoch ends with a batch of fewer rows, twice."""
    x, y = job.batches[2]
    epoch = [*job.batches[:2], (x[:100], y[:100])]
    return [step(*pair) for pair in (*epoch, *epoch)]


def evaluation_mode(job: Job, step: Step) -> list[object]:
    """Batch norm and dropout rest for one step."""
    returned = [step(*job.batches[0])]
    job.model.eval()
    returned.append(step(*job.batches[1]))
    job.model.train()
    return [*returned, step(*job.batches[2])]


def frozen_layers(job: Job, step: Step) -> list[object]:
    """The first layers stop learning, and learn again."""
    first = list(job.model.parameters())[:6]
    returned: list[object] = []
    for pair, learns in zip(job.batches, (True, False, True), strict=True):
        for parameter in first:
            parameter.requires_grad_(learns)
        returned.append(step(*pair))
    return returned


def loaded_state(job: Job, step: Step) -> list[object]:
    """Model and optimizer go back to a checkpoint."""
    returned = [step(*job.batches[0])]
    checkpoint = copy.deepcopy((job.model.state_dict(), job.optimizer.state_dict()))
    returned.append(step(*job.batches[1]))
    job.model.load_state_dict(checkpoint[0])
    job.optimizer.load_state_dict(checkpoint[1])
    return [*returned, step(*job.batches[2])]


def replaced_data(job: Job, step: Step) -> list[object]:
    """Parameters get other tensors."""
    returned = [step(*job.batches[0])]
    for parameter in job.model.parameters():
        parameter.data = parameter.data * 0.5
    return [*returned, step(*job.batches[1])]


def slices(job: Job, step: Step) -> list[object]:
    """Batches are slices of larger tensors."""
    x, y = (torch.cat(parts) for parts in zip(*job.batches, strict=True))
    return [step(x[begin : begin + WIDTH], y[begin : begin + WIDTH]) for begin in (0, 100, 1000)]


def keywords(job: Job, step: Step) -> list[object]:
    """Arguments are named, in either order."""
    return [step(y=y, x=x) for x, y in job.batches] + [step(job.batches[0][0], y=job.batches[0][1])]


def not_a_number(job: Job, step: Step) -> list[object]:
    """A batch holds a NaN, and so does everything from then on."""
    job.batches[1][0][3, 5] = float("nan")
    returned = plain(job, step)
    assert isinstance(returned[-1], Tensor)
    assert returned[-1].isnan()
    return returned


@pytest.mark.parametrize(
    ("scenario", "momentum", "above"),
    [
        (plain, 0.9, 10),
        (learning_rate, 0.0, 8),
        (short_last_batch, 0.0, 8),
        (evaluation_mode, 0.0, 8),
        (frozen_layers, 0.0, 8),
        (loaded_state, 0.9, 40),  # the checkpoint is held by this process
        (replaced_data, 0.0, 8),
        (slices, 0.0, 14),  # the larger tensors are held by this process
        (keywords, 0.0, 8),
        (not_a_number, 0.0, 8),
    ],
)
def test_what_happens_between_calls_is_seen(
    scenario: Scenario, momentum: float, above: int, compiled: Compile, short: Callable[..., int]
) -> None:
    """Whatever changes from call to call, the bits are those of the step itself."""
    expected = by_eager(scenario, momentum)
    job, files = wide(momentum=momentum), open_spill_files()
    assert differences(left_by(scenario, job, compiled(job, short(job, above))), expected) == []
    assert job.real_calls == 0
    assert open_spill_files() > files, "something was swapped"


def test_gradients_stay_where_eager_leaves_them(compiled: Compile, short: Callable[..., int]) -> None:
    """A step that clears gradients first leaves its own in `grad`; one that returns nested values returns them."""

    def twin() -> tuple[Job, Step]:
        job = wide()

        def step(x: Tensor, y: Tensor) -> dict[str, object]:
            job.optimizer.zero_grad()
            loss = job.loss(x, y)
            loss.backward()
            job.optimizer.step()
            return {"losses": [loss.detach(), (loss * 2).detach()], "rows": x.shape[0], "nothing": None}

        return job, step

    eager, as_written = twin()
    ours, function = twin()
    expected = left_by(plain, eager, as_written)
    found = left_by(plain, ours, compiled(ours, short(ours, 24), function))
    assert differences(found, expected) == []
    assert all(parameter.grad is not None for parameter in ours.model.parameters())


@pytest.mark.usefixtures("no_room_is_ample")
def test_plans_are_counted_and_bounded(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape that was not asked for longest is forgotten, which is told, and captured anew when it comes back."""
    monkeypatch.setattr(entries, "_MOST_ENTRIES", 2)
    job = wide()
    step = compiled(job, AMPLE)
    for rows in (8, 16, 8):
        step(*batch(rows))
    with pytest.warns(UserWarning, match=r"more shapes than outgrow keeps plans for \(2\)"):
        step(*batch(24))
    for rows in (8, 16):
        step(*batch(rows))
    report = step.plans
    assert [plan.shapes for plan in report.plans] == [((8, WIDTH), (8,)), ((16, WIDTH), (16,))]
    assert [plan.calls for plan in report.plans] == [3, 1]
    assert report.forgotten == 2
    assert report.seconds > 0


def test_each_shape_is_captured_once(
    compiled: Compile, short: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of both batch shapes are kept: going back neither captures nor plans again."""
    done: list[str] = []

    def counted(module: ModuleType, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **kwargs: (done.append(name), original(*args, **kwargs))[1])

    counted(capturing, "capture")
    counted(guided, "fitted")
    monkeypatch.setattr(guided, "_SURPRISE", math.inf)  # how long a run takes is no matter of this test
    job = wide()
    step = compiled(job, short(job, 16))
    done.clear()
    batches = (job.batches[0], batch(WIDTH + 128))
    for pair in (*batches, *batches, *batches, *batches):
        step(*pair)
    assert done.count("capture") == 2
    planned = done.count("fitted")
    for pair in (*batches, *batches):
        step(*pair)
    assert done.count("capture") == 2
    assert done.count("fitted") == planned


def test_no_trace_is_made_of_a_run_that_takes_what_was_predicted(
    compiled: Compile, short: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace tells of every op: it is made of a run that shows something new, or when somebody asks for it."""
    made: list[Recording] = []
    original = Recording.trace.func
    monkeypatch.setattr(Recording, "trace", property(lambda self: (made.append(self), original(self))[1]))
    monkeypatch.setattr(guided, "_SURPRISE", math.inf)
    job = wide()
    step = compiled(job, short(job, 16))
    made.clear()
    for _ in range(3):
        step(*job.batches[0])
    assert not made
    assert step.plan.measured is not None
    assert made


@pytest.mark.parametrize("share", [0.0, math.inf])
def test_a_machine_that_changes_is_planned_for_while_that_takes_a_small_share_of_the_time(
    compiled: Compile, short: Callable[..., int], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """After the first surprises a run that differs is planned again only if runs have taken long enough for that."""
    monkeypatch.setattr(guided, "_PLANNING_SHARE", share)
    monkeypatch.setattr(guided, "_SURPRISE", -1.0)  # every run differs
    job = wide()
    step = compiled(job, short(job, 16))
    calls = 3 + guided._SURPRISES  # the first run shows costs, and the last one has not been answered yet
    for _ in range(calls):
        step(*job.batches[0])
    done: list[int] = []
    original = guided.fitted
    monkeypatch.setattr(guided, "fitted", lambda *args, **kwargs: (done.append(1), original(*args, **kwargs))[1])
    for _ in range(3):
        step(*job.batches[0])
    assert bool(done) == (share > 0)


def test_the_published_planner_keeps_the_bits(compiled: Compile, short: Callable[..., int]) -> None:
    """Whoever plans, the step is the same."""
    expected = by_eager(plain, MOMENTUM)
    ours = wide(momentum=MOMENTUM)
    step = compiled(ours, short(ours, 16, "nnabla_window"), planner="nnabla_window")
    assert differences(left_by(plain, ours, step), expected) == []
    assert step.plan.bytes_swapped > 0


def test_an_ample_budget_calls_the_function_itself(compiled: Compile) -> None:
    """Where the step fits, nothing stands between the user's function and torch."""
    expected = by_eager(plain, MOMENTUM)
    ours = wide(momentum=MOMENTUM)
    step = compiled(ours, AMPLE)
    assert differences(left_by(plain, ours, step), expected) == []
    assert ours.real_calls == 3
    assert step.plan.bytes_swapped == 0
    assert step.plan.ran_as_written


def test_a_loss_holds_no_more_than_its_number(compiled: Compile) -> None:
    """The operator leaves it in memory as large as what it was summed from; the peak is the one predicted, though."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.randn(1024, WIDTH)
    planned = compiled(Job(model, optimizer, []), "110MiB", step)
    for _ in range(3):  # the third call runs what was planned from observed workspaces
        assert planned(x).untyped_storage().nbytes() == 4
    measured = planned.traces.measured
    assert measured is not None
    assert measured.peak_bytes == planned.current.predicted.peak_bytes


def test_a_function_that_takes_more_than_it_may_is_planned_from_then_on(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked as if there were ample room; later calls run a plan, made at first with the overhead that showed."""
    expected = by_eager(plain, 0.0)
    ours = wide()
    budget = 1 << 30
    step = compiled(ours, budget)
    overhead = budget // 4

    def exceeding(job: Job, step: Step) -> list[object]:
        assert isinstance(step, outgrow.Step)
        with monkeypatch.context() as first:
            first.setattr(step._platform, "high_water_bytes", lambda: step._baseline_bytes + budget + 1)
            first.setattr(
                guided.GuidedPlanning,
                "note_captured",
                lambda _self, _given, entry: setattr(entry.runs, "shown", Shown(overhead, 0, 0, 0)),
            )
            returned = [step(*job.batches[0])]
        returned.append(step(*job.batches[1]))
        assert step.plan.overhead_bytes > overhead
        returned += [step(*pair) for pair in job.batches[2:]]
        return returned

    assert differences(left_by(exceeding, ours, step), expected) == []
    assert ours.real_calls == 1


def test_in_ample_room_a_smaller_batch_needs_no_plan(compiled: Compile) -> None:
    """Where a batch has room to spare, one that is no larger has; the step is captured for those that are larger."""
    rows = [64, 32, 48, 96, 80, 96, 7, 128, 100, 64]
    batches = [batch(count) for count in rows]

    def scenario(_job: Job, step: Step) -> list[object]:
        return [step(*pair) for pair in batches]

    expected = left_by(scenario, job := wide(), job.step)
    ours = wide()
    step = compiled(ours, AMPLE)
    assert differences(left_by(scenario, ours, step), expected) == []
    assert [plan.shapes[0][0] for plan in step.plans.plans] == [64, 96, 128]
    assert ours.real_calls == len(rows)


def test_in_ample_room_another_float_needs_no_plan(compiled: Compile) -> None:
    """The function itself is given it."""

    def scenario(_job: Job, step: Step) -> list[object]:
        return [step(*batch(WIDTH), share) for share in (0.5, 0.25, 0.75)]

    def weighted(job: Job) -> Callable[..., Tensor]:
        def step(x: Tensor, y: Tensor, share: float) -> Tensor:
            loss = F.cross_entropy(job.model(x), y) * share
            loss.backward()
            job.optimizer.step()
            job.optimizer.zero_grad()
            return loss

        return step

    expected = left_by(scenario, job := wide(), weighted(job))
    step = compiled(ours := wide(), AMPLE, weighted(ours))
    assert differences(left_by(scenario, ours, step), expected) == []
    assert len(step.plans.plans) == 1


def test_a_smaller_batch_that_takes_more_than_it_may_is_planned_from_then_on(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may do with few rows what it does not with many."""
    large, small = batch(WIDTH), batch(WIDTH // 2)
    budget = 1 << 30

    def exceeding(_job: Job, step: Step) -> list[object]:
        returned = [step(*large), step(*large)]
        if isinstance(step, outgrow.Step):
            with monkeypatch.context() as first:
                first.setattr(step._platform, "high_water_bytes", lambda: step._baseline_bytes + budget + 1)
                returned.append(step(*small))
                assert len(step.plans.plans) == 1
                returned.append(step(*small))
            assert len(step.plans.plans) == 2
            return [*returned, step(*small), step(*large)]
        return [*returned, *(step(*small) for _ in range(3)), step(*large)]

    expected = left_by(exceeding, job := wide(), job.step)
    ours = wide()
    step = compiled(ours, budget)
    assert differences(left_by(exceeding, ours, step), expected) == []
    assert ours.real_calls == 4, "what exceeds by itself is planned, and so is what exceeded by another"


class Watched(nn.Module):
    """A layer that keeps what it gave in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.given: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).tanh()
        self.given = x.detach()
        return x


def test_what_is_large_in_an_attribute_cannot_be_read(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until eager mode sets it, which makes no new plan; a copy of the model can be made at any time."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)
    model = Watched()
    x, y = torch.ones(257, 64), torch.ones(257).long()  # beyond 64 KiB
    job = Job(nn.Sequential(model), torch.optim.SGD(model.parameters(), lr=0.1), [(x, y)])
    step = compiled(job, "1GiB")
    for _ in range(3):
        step(x, y)
        copy.deepcopy(model)
        with pytest.raises(Uncapturable, match=r"left in Watched\.given is read.*return it from the step"):
            _ = model.given + 1  # pyright: ignore[reportOptionalOperand]
        model(x)
        assert isinstance(model.given, Tensor)
    assert len(step.plans.plans) == 1


def test_a_closed_step_opens_again(compiled: Compile, short: Callable[..., int]) -> None:
    """`close` frees the spill file; the next call makes another one, and trains on."""
    ours, files = wide(), open_spill_files()

    def closed_after_each(job: Job, step: Step) -> list[object]:
        returned: list[object] = []
        for pair in job.batches:
            returned.append(step(*pair))
            if isinstance(step, outgrow.Step):
                assert open_spill_files() == files + 1
                step.close()
                assert open_spill_files() == files
        return returned

    assert differences(left_by(closed_after_each, ours, compiled(ours, short(ours))), by_eager(plain, 0.0)) == []


def test_what_is_freed_behind_a_closed_step_goes_to_the_kernel(compiled: Compile, short: Callable[..., int]) -> None:
    """Such as what an evaluation took. Between two calls it may rest for the next one, up to the budget."""
    ours = wide()
    budget = short(ours)
    step, pair = compiled(ours, budget), ours.batches[0]
    for _ in range(2):
        step(*pair)
        torch.empty(budget, dtype=torch.uint8)
        torch.empty(2 * budget, dtype=torch.uint8)
        assert arena.resting_bytes() <= budget
    step.close()
    torch.empty(budget, dtype=torch.uint8)
    assert arena.resting_bytes() == 0


def test_a_step_closes_after_a_layer_was_exchanged(compiled: Compile, short: Callable[..., int]) -> None:
    """Its optimizer updates what no model owns any more; what rests comes home all the same."""
    ours, files = wide(), open_spill_files()
    step = compiled(ours, short(ours))
    step(*ours.batches[0])
    ours.model[-1] = nn.Linear(WIDTH, 3)
    step.close()
    assert open_spill_files() == files


FORKED = """
import os, sys, torch
from tests.frontends.training import wide
import outgrow
from outgrow.errors import Infeasible, TierFailure
ours = wide()

def compiled(budget):
    where = dict(memory_budget=budget, offload_dir=sys.argv[1])
    return outgrow.compile(ours.step, model=ours.model, optimizer=ours.optimizer, **where)

try:
    compiled(1 << 20)(*ours.batches[0])
except Infeasible as refusal:
    step = compiled(refusal.floor_bytes + (12 << 20))
for pair in ours.batches:
    step(*pair)
assert step.plan.bytes_swapped > 0
child = os.fork()
if child == 0:
    try:
        step(*ours.batches[0])
    except TierFailure as failure:
        os._exit(17 if "from which this one was forked" in str(failure) else 1)
    os._exit(1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 17, status
step(*ours.batches[0])
print("went on")
"""


def test_a_forked_process_is_refused_and_the_other_one_goes_on(
    disk_folder: Path,
) -> None:
    """The child has no threads that copy, and the file is its parent's; it does not hang, and writes nothing."""
    found = ran(FORKED, disk_folder, seconds=300)
    assert found.stdout == "went on\n", found.stderr


# ---- What goes wrong in the middle of a call


@dataclass
class Disk:
    """A disk that fails at will: at the copy of this number from now, or at any once `fails` says so."""

    monkeypatch: pytest.MonkeyPatch
    error: int = 0
    countdown: int = -1
    then: Callable[[], None] | None = None

    def break_after(self, copies: int, error: int) -> None:
        self.countdown, self.error = copies, error

    def heal(self) -> None:
        self.countdown, self.then = -1, None

    def watch(self, function: str) -> None:
        original = getattr(os, function)

        def transfer(*arguments: object) -> object:
            if self.countdown == 0:
                if self.then is None:
                    raise OSError(self.error, os.strerror(self.error))
                self.then()
                self.heal()
            elif self.countdown > 0:
                self.countdown -= 1
            return original(*arguments)

        self.monkeypatch.setattr(os, function, transfer)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def copies_in_flight(step: outgrow.Step) -> int:
    """How many copies of a step have not ended."""
    platform = step._platform
    assert isinstance(platform, OnCpu), "the step runs on a CPU"
    link = platform._spill.link
    assert isinstance(link, Link), "a step that swaps has a link"
    return sum(not ticket.has_ended for ticket in link._last.values())


def interrupted(
    job: Job, step: outgrow.Step, arm: Callable[[], None], disarm: Callable[[], None], error: type[BaseException]
) -> Left:
    """Train on three batches; the third fails once, which must leave what the second left, and is repeated."""
    torch.manual_seed(1)
    returned = [step(*pair) for pair in job.batches[:2]]
    before = left(job)
    interval = sys.getswitchinterval()
    arm()
    with pytest.raises(error):
        step(*job.batches[2])
    disarm()
    assert copies_in_flight(step) == 0
    assert sys.getswitchinterval() == interval
    assert differences(left(job), before) == []
    return left(job, [*returned, step(*job.batches[2])])


@pytest.mark.parametrize(
    ("function", "copies", "error"),
    [("pwritev", 0, errno.ENOSPC), ("pwritev", 3, errno.EIO), ("preadv", 0, errno.EIO)],
)
def test_a_failing_disk_leaves_the_last_step(
    function: str, copies: int, error: int, compiled: Compile, short: Callable[..., int], disk: Disk
) -> None:
    """Before the first update nothing is lost: the state is that of the step before, and the next call trains on."""
    expected = by_eager(plain, MOMENTUM)
    ours = wide(momentum=MOMENTUM)
    step = compiled(
        ours, short(ours, 10, "nnabla_window"), planner="nnabla_window"
    )  # It leaves the updates at the end of the step.
    disk.watch(function)
    found = interrupted(ours, step, lambda: disk.break_after(copies, error), disk.heal, TierFailure)
    assert differences(found, expected) == []


def test_a_failing_disk_in_the_first_call(compiled: Compile, short: Callable[..., int], disk: Disk) -> None:
    """The failure names the folder and the reason, and leaves what was there before any step."""
    job = wide()
    step = compiled(job, short(job))
    before = left(job)
    disk.watch("pwritev")
    disk.break_after(0, errno.EIO)
    with pytest.raises(TierFailure, match=r"spill file in .* failed: Input/output error .*offload_dir"):
        step(*job.batches[0])
    disk.heal()
    assert differences(left(job), before) == []
    step(*job.batches[0])


def test_a_failure_among_updates_is_never_silent(
    compiled: Compile, short: Callable[..., int], disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a parameter was updated a failure tears the state, and the step refuses to go on."""
    job = wide(layers=8)
    step = compiled(job, short(job, 4))
    apply = Run._apply

    def applied(run: Run, call: program.Call) -> int:
        if call.updates and disk.countdown < 0:
            disk.break_after(0, errno.EIO)
        return apply(run, call)

    monkeypatch.setattr(Run, "_apply", applied)
    disk.watch("preadv")
    with pytest.raises(TierFailure, match="Input/output error"):
        step(*job.batches[0])
    instructions = step._entries._by_signature.popitem()[1][0].runnable.program.instructions
    first = next(at for at, item in enumerate(instructions) if isinstance(item, program.Call) and item.updates)
    assert any(isinstance(item, SwapIn) for item in instructions[first:]), "a copy begins after an update"
    disk.heal()
    assert copies_in_flight(step) == 0
    for _ in range(2):
        with pytest.raises(TornState, match="checkpoint"):
            step(*job.batches[0])


def test_an_error_that_is_kept_keeps_nothing(
    compiled: Compile, short: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither space of the file nor the copies of buffers, though its frames know the run."""
    job = wide(momentum=MOMENTUM)
    gc.collect()  # what earlier tests have left goes before files are counted
    files = open_spill_files()
    step = compiled(job, short(job, 10))
    for pair in job.batches[:2]:
        step(*pair)
    copies: list[ref[torch.UntypedStorage]] = []
    clone = torch.UntypedStorage.clone

    def cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        copy = clone(storage)
        copies.append(ref(copy))
        return copy

    def failing(run: Rerun, part: Numbered) -> None:
        assert run._run.extents, "weights leave in the step"
        raise OSError(part.call.name)

    with monkeypatch.context() as broken:
        broken.setattr(torch.UntypedStorage, "clone", cloned)
        broken.setattr(Rerun, "_play", failing)
        with pytest.raises(OSError, match=r".") as kept:
            step(*job.batches[2])
    assert copies
    assert not [copy for copy in copies if copy() is not None]
    step.close()
    assert open_spill_files() == files
    del kept


@pytest.mark.parametrize(("error", "times"), [(KeyboardInterrupt, 1), (KeyboardInterrupt, 2), (TimeoutError, 2)])
def test_an_interrupted_op_leaves_the_last_step(
    error: type[BaseException],
    times: int,
    compiled: Compile,
    short: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C while a copy is in flight: the copy ends, the state is that of the step before, the step trains on.

    So it is where the second Ctrl-C comes while the copies are waited for, and with what a timer's handler raises.
    """
    presses, waited = iter(range(times - 1)), list[Spill]()
    settle = Spill.settle

    def settled(spill: Spill) -> None:
        if next(presses, None) is not None:
            raise error
        settle(spill)
        waited.append(spill)

    monkeypatch.setattr(Spill, "settle", settled)
    expected = by_eager(plain, MOMENTUM)
    ours = wide(momentum=MOMENTUM)
    step = compiled(ours, short(ours))
    play = Rerun._play

    def interrupt(run: Rerun, part: Numbered) -> None:
        play(run, part)
        if run._run.in_flight:
            raise error

    found = interrupted(
        ours,
        step,
        lambda: monkeypatch.setattr(Rerun, "_play", interrupt),
        lambda: monkeypatch.setattr(Rerun, "_play", play),
        error,
    )
    assert waited
    assert differences(found, expected) == []


def test_a_signal_leaves_the_last_step(compiled: Compile, short: Callable[..., int], disk: Disk) -> None:
    """The same, where the interrupt comes when it wants."""
    expected = by_eager(plain, MOMENTUM)
    ours = wide(momentum=MOMENTUM)
    step = compiled(ours, short(ours))
    disk.watch("pwritev")

    def arm() -> None:
        disk.then = _thread.interrupt_main
        disk.break_after(1, 0)

    assert differences(interrupted(ours, step, arm, disk.heal, KeyboardInterrupt), expected) == []
    assert threading.main_thread() is threading.current_thread()


# ---- What is refused


def test_no_gradient_goes_back_into_a_step_that_is_over(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it returns has a graph as in eager mode; a term that is added outside would miss the gradient behind it."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)
    job = wide(layers=2)

    def losses(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        loss = job.loss(x, y)
        loss.backward()
        job.optimizer.step()
        job.optimizer.zero_grad()
        return loss, loss, loss.detach(), y + 1

    first, second, detached, number = compiled(job, AMPLE, losses)(*job.batches[0])
    assert (first.requires_grad, detached.requires_grad, number.requires_grad) == (True, False, False)
    assert first is second
    assert torch.equal(first.detach(), detached)
    first *= 2
    penalty = sum(parameter.square().sum() for parameter in job.model.parameters())
    with pytest.raises(Uncapturable, match=r"test_compile\.py:\d+: .*call backward\(\) in the function"):
        (first + penalty).backward()


@pytest.mark.parametrize("budget", ["8 bananas", "", 0, -1, "-1GiB", True, 1.5, None])
@pytest.mark.parametrize("which", ["memory_budget", "disk_budget", "host_budget"])
def test_a_budget_is_a_size(budget: object, which: str, disk_folder: Path) -> None:
    """What is no number of bytes is refused at once, by name."""
    if which != "memory_budget" and budget is None:
        return
    job = wide(layers=1)
    options = {"memory_budget": "1GiB", "offload_dir": disk_folder, which: budget}
    with pytest.raises(InvalidQuantity, match=f"{which.replace('_', ' ')} .*Give|Write"):
        outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, **options)


def test_a_host_budget_is_for_a_gpu(disk_folder: Path) -> None:
    """On the CPU the host is the device; whoever sets another limit for it would wait for what does not come."""
    job = wide(layers=1)
    options = {"memory_budget": "1GiB", "offload_dir": disk_folder, "host_budget": "1GiB"}
    with pytest.raises(ValueError, match="host_budget is for a model on a GPU"):
        outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, **options)


def test_a_step_runs_where_it_was_compiled(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that was moved to another device since, nothing would be under the budget."""
    job = wide(layers=1)
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(capturing, "home_of", lambda _training: torch.device("cuda", 0))
        step = outgrow.compile(
            job.step, model=job.model, optimizer=job.optimizer, memory_budget="1GiB", offload_dir=disk_folder
        )
    with pytest.raises(Uncapturable, match=r"are on cpu, .* were on cuda:0 .* compile it after moving the model"):
        step(*job.batches[0])


def test_a_budget_beyond_the_machine_is_told() -> None:
    """It may be meant, so it is a warning, at the line that asks for it."""
    job = wide(layers=1)
    with pytest.warns(Remark, match="more than this machine has") as said:
        outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget="1000TiB")
    assert said[0].filename == __file__


def test_below_the_floor(compiled: Compile) -> None:
    """The refusal names the floor and what sets it; given the floor, the step trains.

    The second step finds momentum and has another floor, so there may be a second refusal.
    """
    budget, refusals = MIB, 0
    while refusals < 3:
        ours = wide(momentum=MOMENTUM)
        try:
            found = left_by(plain, ours, compiled(ours, budget))
            break
        except Infeasible as refusal:
            assert refusal.culprit in str(refusal)
            assert "Raise the budget to" in str(refusal)
            assert refusal.floor_bytes > budget
            budget = refusal.floor_bytes + 4 * MIB  # what the process holds besides differs from time to time
            refusals += 1
    assert refusals <= 2
    assert differences(found, by_eager(plain, MOMENTUM)) == []


def test_a_refused_step_leaves_no_trace(compiled: Compile) -> None:
    """A budget below the floor is found before anything changes."""
    job = wide()
    before = left(job)
    with pytest.raises(Infeasible):
        compiled(job, MIB)(*job.batches[0])
    assert differences(left(job), before) == []


def test_a_step_that_looks_at_data(compiled: Compile) -> None:
    """A branch on a tensor is named by file and line."""
    job = wide(layers=1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = job.loss(x, y)
        if float(loss) > 1:
            loss = loss * 2
        loss.backward()
        return loss

    line = step.__code__.co_firstlineno + 2
    with pytest.raises(Uncapturable, match=rf"test_compile\.py.*{line}"):
        compiled(job, AMPLE, step)(*job.batches[0])


def test_in_ample_room_a_change_of_what_is_trained_is_noticed(compiled: Compile) -> None:
    """The step is captured again where a layer is frozen, or the batch is larger; else it is not."""
    job = wide(layers=2)
    step = compiled(job, AMPLE)
    counts: list[int] = []
    for pair in job.batches * 2:
        step(*pair)
    counts.append(len(step.plans.plans))
    first = job.model[0]
    assert isinstance(first, nn.Linear)
    first.weight.requires_grad_(False)
    for pair in job.batches:
        step(*pair)
    counts.append(len(step.plans.plans))
    step(*batch(WIDTH * 2))
    counts.append(len(step.plans.plans))
    first.weight.requires_grad_(True)
    step(*job.batches[0])
    counts.append(len(step.plans.plans))
    assert counts == [1, 2, 3, 3]


def test_weights_that_are_read_first_in_inference_mode_can_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that a loaded weight gets in the first call is no inference tensor, whatever the mode."""
    model = nn.Linear(4, 4)
    monkeypatch.setattr(entries, "is_loaded", lambda _storage: True)
    monkeypatch.setattr(arena, "LEAST_BYTES", 1)
    with torch.inference_mode():
        assert entries._own_what_was_loaded(Training((model,), ()))
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()


def test_an_unknown_planner(compiled: Compile) -> None:
    """It is refused when the step is compiled, with the names of those that there are."""
    job = wide(layers=1)
    with pytest.raises(ValueError, match=r"planner 'serach' is unknown.*nnabla_window.*search"):
        compiled(job, AMPLE, planner="serach")


def test_folders_that_cannot_be_used(compiled: Compile, tmp_path: Path) -> None:
    """A file, memory, and a place where nothing can be made are refused when the step is compiled."""
    job = wide(layers=1)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TierFailure, match=rf"{file} is not a directory.*Choose"):
        compiled(job, AMPLE, offload_dir=file)
    with pytest.raises(TierFailure, match=r"/proc/nowhere cannot be made.*Choose"):
        compiled(job, AMPLE, offload_dir="/proc/nowhere")
    if Path("/dev/shm").is_dir():
        with pytest.raises(TierFailure, match=r"/dev/shm lies on tmpfs, which is memory.*Choose"):
            compiled(job, AMPLE, offload_dir=Path("/dev/shm"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(compiled: Compile, tmp_path: Path) -> None:
    """An unwritable folder is refused when the step is compiled."""
    job = wide(layers=1)
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(TierFailure, match=rf"{folder} cannot be used.*Permission denied.*Choose"):
        compiled(job, AMPLE, offload_dir=folder)


def test_a_disk_budget_that_is_too_small(compiled: Compile, short: Callable[..., int]) -> None:
    """The refusal says what the plan needs and what to raise, before the step runs."""
    job = wide()
    before = left(job)
    step = compiled(job, short(job), disk_budget="1MiB")
    with pytest.raises(TierFailure, match=r"needs .* MiB in .*disk budget is 1\.0 MiB\. Raise the disk budget"):
        step(*job.batches[0])
    assert differences(left(job), before) == []


def test_no_plan_before_the_first_call(compiled: Compile) -> None:
    """What describes the last call says so where there was none."""
    job = wide(layers=1)
    step = compiled(job, AMPLE)
    for name in ("plan", "current", "traces", "captured", "derived", "derivation"):
        with pytest.raises(OutOfTurn, match=r"not been called yet.*Call it once"):
            getattr(step, name)


def test_no_traces_of_another_call_after_one_that_fails(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is that of the call that failed, and what was recorded before is not of it."""
    job = wide(layers=1)
    step = compiled(job, AMPLE)
    step(*job.batches[0])
    assert step.traces.measured
    monkeypatch.setattr(Optimizer, "zero_grad", refusing)
    with pytest.raises(RuntimeError, match="no more"):
        step(*job.batches[0])
    assert step.traces.measured is None


def refusing(*_args: object, **_options: object) -> None:
    """Fail as a step might."""
    raise RuntimeError("no more")


@pytest.mark.parametrize("model", [None, 3, "model", (), [nn.Linear(1, 1), 3], lambda x: x])
def test_a_model_is_a_module(model: object) -> None:
    """What is no module is refused when the step is compiled."""
    job = wide(layers=1)
    with pytest.raises(TypeError, match=r"model .*nn\.Module"):
        compile_anything(job.step, model=model, optimizer=job.optimizer, memory_budget=AMPLE)


def test_an_optimizer_is_an_optimizer() -> None:
    """What is no optimizer is refused when the step is compiled; so is a step that cannot be called."""
    job = wide(layers=1)
    with pytest.raises(TypeError, match=r"optimizer .*torch\.optim"):
        compile_anything(job.step, model=job.model, optimizer=job.model.parameters(), memory_budget=AMPLE)
    with pytest.raises(TypeError, match=r"step .*function"):
        compile_anything(job.model(job.batches[0][0]), model=job.model, memory_budget=AMPLE)


def test_a_mesh_is_a_mesh() -> None:
    """What is no mesh is refused when the step is compiled."""
    job = wide(layers=1)
    with pytest.raises(TypeError, match=r"mesh is a int\. Give the DeviceMesh"):
        compile_anything(job.step, model=job.model, optimizer=job.optimizer, memory_budget=AMPLE, mesh=2)


def test_a_module_is_no_step() -> None:
    """A model alone is for torch.compile, and that is said."""
    job = wide(layers=1)
    with pytest.raises(TypeError, match=r"step is a Sequential, which is a module\..* backend=\"outgrow\""):
        compile_anything(job.model, model=job.model, optimizer=job.optimizer, memory_budget=AMPLE)


def test_a_step_returns_when_it_has_run() -> None:
    """What only begins, and ends later, cannot be planned."""
    job = wide(layers=1)

    def yielding(x: Tensor, y: Tensor) -> Iterator[Tensor]:
        yield job.loss(x, y)

    async def awaited(x: Tensor, y: Tensor) -> Tensor:
        return job.loss(x, y)

    for step in (yielding, awaited):
        with pytest.raises(TypeError, match="step is a generator or a coroutine"):
            compile_anything(step, model=job.model, optimizer=job.optimizer, memory_budget=AMPLE)


def in_turn(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that calls another one."""

    def calls(x: Tensor, y: Tensor) -> object:
        return function(x, y)

    return calls


@pytest.mark.filterwarnings("error:.*never awaited")
def test_a_wrapped_step_returns_when_it_has_run(compiled: Compile) -> None:
    """Its first call shows what it is; no coroutine is left that nobody awaits."""
    job = wide(layers=1)

    async def awaited(x: Tensor, y: Tensor) -> Tensor:
        return job.loss(x, y)

    for begun in (awaited, lambda x, y: (job.loss(x, y) for _ in range(2))):
        step = compiled(job, AMPLE, in_turn(begun))
        with pytest.raises(Uncapturable, match="step is a generator or a coroutine"):
            step(*job.batches[0])


def test_a_step_that_trains_nothing_is_told(compiled: Compile) -> None:
    """One that leaves out optimizer.step(), or runs nothing; not one that adds to gradients or has no optimizer."""
    job = wide(layers=1)

    def forgetful(x: Tensor, y: Tensor) -> Tensor:
        loss = job.loss(x, y)
        loss.backward()
        job.optimizer.zero_grad()
        return loss

    def adding(x: Tensor, y: Tensor) -> Tensor:
        loss = job.loss(x, y)
        loss.backward()
        return loss

    with pytest.warns(Remark, match=r"Does it call optimizer\.step\(\)"):
        compiled(job, AMPLE, forgetful)(*job.batches[0])
    with pytest.warns(Remark, match="runs no operator of torch"):
        compiled(job, AMPLE, lambda x, _: x)(*job.batches[0])
    compiled(job, AMPLE, adding)(*job.batches[0])
    compiled(job, AMPLE, adding)(*job.batches[0])  # to the gradients that are there


def test_a_step_without_optimizer(disk_folder: Path) -> None:
    """A decorator on a step that only adds to the gradients, with several models."""
    torch.manual_seed(0)
    models = [nn.Linear(8, 8), nn.Linear(8, 1)]
    x = torch.randn(4, 8)

    @outgrow.compile(model=models, memory_budget=AMPLE, offload_dir=disk_folder)
    def step(x: Tensor) -> Tensor:
        loss = F.softplus(models[1](models[0](x))).mean()
        loss.backward()
        return loss

    assert torch.equal(*(step(x).detach() for _ in range(2)))
    assert models[0].weight.grad is not None


def test_a_complex_number_is_no_loss(disk_folder: Path) -> None:
    """A step may return one; the table of the plan leaves it out."""
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)

    @outgrow.compile(model=model, memory_budget=AMPLE, offload_dir=disk_folder)
    def step(x: Tensor) -> Tensor:
        return torch.fft.fft(model(x))[0, 1]

    assert torch.equal(*(step(x).detach() for _ in range(2)))
    assert step.plan.measured is not None
    assert step.plan.measured.losses == ()
