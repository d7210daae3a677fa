"""Does a step keep its budget whatever the program holds beside it, and use the budget again once that is free?"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import outgrow
from outgrow.frontends import calls, guided, within_budget
from outgrow.frontends.entry import Runnable
from outgrow.remarks import Remark
from outgrow.runtime.process import process_bytes
from outgrow.units import MIB
from tests.frontends import training
from tests.frontends.training import WIDTH, Job, batch, reporting

pytestmark = pytest.mark.usefixtures("no_room_is_ample")


class Scaled(nn.Module):
    """What holds as many bytes as a linear layer, and computes little."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.mean(0)


def wide(layers: int) -> Job:
    """A job of which nobody needs to wait for products."""
    return training.wide(layers=layers, layer=Scaled)


def taken(step: outgrow.Step[..., Tensor], given: tuple[Tensor, Tensor], times: int) -> list[int]:
    """What the process took in calls with a batch."""
    found: list[int] = []
    for _ in range(times):
        step(*given)
        found.append(step.process_bytes)
    return found


def under(job: Job, budget: int) -> outgrow.Step[..., Tensor]:
    """The step of a job under a budget in MiB."""
    return outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget * MIB)


def test_memory_that_rests_is_no_overhead() -> None:
    """What a large batch leaves for later does not make the plans of others smaller."""
    job = wide(layers=12)
    step, small, large = under(job, 400), batch(700), batch(2600)
    for given in (large, small, large):
        assert max(taken(step, given, 2)) <= 400 * MIB
        assert step.plan.overhead_bytes < 60 * MIB


def test_what_rests_makes_room_for_others() -> None:
    """A small batch that had much room leaves that to what the program has taken since, not to memory that rests."""
    job = wide(layers=12)
    step, small, large = under(job, 400), batch(900), batch(2600)
    taken(step, small, 3)
    taken(step, large, 3)
    held = torch.ones(100 * MIB // 4)
    found = taken(step, small, 2)
    assert held.nbytes < max(found) <= 400 * MIB


def test_what_rests_makes_room_for_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of many small tensors, which is called as it is, finds room beside what a planned call has left."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 64 * MIB)
    torch.manual_seed(0)
    model = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: Tensor) -> Tensor:
        hidden = x
        for _ in range(80):
            hidden = torch.tanh(model(hidden))
        loss = hidden.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    compiled = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=180 * MIB)
    small, large = torch.randn(250, 256), torch.randn(2200, 256)
    for given in (small, small, large, large, large, small):
        compiled(given)
        assert compiled.process_bytes <= 180 * MIB
    assert compiled.plan.ran_as_written


def test_what_was_held_for_one_batch_is_room_for_another() -> None:
    """Memory that was held while a small batch ran is free for a large one."""
    job = wide(layers=12)
    step, small, large = under(job, 400), batch(700), batch(2000)
    held = torch.ones(230 * MIB // 4)
    assert held.nbytes < max(taken(step, small, 3)) <= 400 * MIB
    del held
    assert max(taken(step, large, 2)) <= 400 * MIB
    assert step.plan.overhead_bytes < 80 * MIB


def test_a_plan_uses_what_has_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that was planned beside what the program held for a while is planned anew once that is gone."""
    monkeypatch.setattr(guided, "_WORTH_SHARE", -1.0)  # however little there is to gain
    monkeypatch.setattr(guided, "_SURPRISE", 1e9)  # whatever else the machine does
    job, given = wide(layers=12), batch(WIDTH)
    step = under(job, 200)
    held = torch.ones(130 * MIB // 4)
    taken(step, given, 6)
    assert step._entries._kept[0].runs.settled
    assert step.plan.overhead_bytes > held.nbytes
    del held
    assert max(taken(step, given, 2)) <= 200 * MIB
    assert step.plan.overhead_bytes < 60 * MIB


def test_a_second_plan_has_room_for_what_was_taken_before() -> None:
    """What the program takes between the first call and the second, in which costs are new, is within the budget."""
    job, given = wide(layers=12), batch(2600)
    step = under(job, 400)
    step(*given)
    held = torch.ones(100 * MIB // 4)
    assert held.nbytes < max(taken(step, given, 2)) <= 400 * MIB


def test_what_each_plan_leaves_behind_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every plan leaves more memory than the slack, the next one has room for as much."""
    job, given = wide(layers=12), batch(2600)
    plan, left = guided.GuidedPlanning.planned, list[Any]()

    def planned(*given: Any) -> Runnable:
        found = plan(*given)
        left.append(np.ones(24 * MIB // 8))
        return found

    monkeypatch.setattr(guided.GuidedPlanning, "planned", planned)
    assert max(taken(under(job, 400), given, 3)) <= 400 * MIB
    assert left


def test_a_view_counts_with_the_data_set_that_it_is_of() -> None:
    """The data set was loaded after the step was compiled, so it is beside the step."""
    job = wide(layers=12)
    step = under(job, 220)
    data = torch.randn(WIDTH * 44, WIDTH)
    assert data.nbytes < max(taken(step, (data[:WIDTH], job.batches[0][1]), 3)) <= 220 * MIB


def test_state_that_comes_home_hides_nothing() -> None:
    """What is taken is seen though optimizer state, which lay in memory when the last step began, rests on the disk."""
    torch.manual_seed(0)
    model = nn.Sequential(*[module for _ in range(6) for module in (nn.Linear(1536, 1536), nn.ReLU())])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    given = torch.randn(512, 1536), torch.randint(0, 1536, (512,))
    step = under(Job(model, optimizer, []), 190)
    taken(step, given, 4)
    step.close()
    step(*given)
    held = torch.ones(50 * MIB // 4)
    assert held.nbytes < max(taken(step, given, 2)) <= 190 * MIB


def test_what_the_baseline_has_lost_is_room() -> None:
    """A checkpoint that was there at first goes, and as much is taken later: it is counted once."""
    job, given = wide(layers=12), batch(WIDTH)
    checkpoint = torch.ones(100 * MIB // 4)
    step = under(job, 200)
    taken(step, given, 3)
    del checkpoint
    taken(step, given, 2)
    held = torch.ones(150 * MIB // 4)
    assert 150 * MIB < max(taken(step, given, 3)) + 100 * MIB <= 300 * MIB
    assert step.plan.overhead_bytes < 100 * MIB
    del held


def test_weights_that_nobody_has_touched_are_not_in_the_baseline(tmp_path: Path) -> None:
    """They come when they are first used, and are of the step then."""
    job = wide(layers=12)
    torch.save(job.model.state_dict(), tmp_path / "weights.pt")
    job.model.load_state_dict(torch.load(tmp_path / "weights.pt", mmap=True), assign=True)
    optimizer = torch.optim.SGD(job.model.parameters(), lr=0.05)
    step = under(Job(job.model, optimizer, []), 80)
    assert abs(process_bytes() - step._baseline_bytes) < 8 * MIB, "all that is there is beside the step"
    assert max(taken(step, batch(WIDTH), 5)) <= 80 * MIB


def test_a_refused_batch_goes() -> None:
    """Who catches the refusal has its memory back at once."""
    job = wide(layers=4)
    step = under(job, 120)
    given = batch(8000)
    gone = ref(given[0])
    with pytest.raises(outgrow.Infeasible):
        step(*given)
    del given
    assert gone() is None


def test_older_plans_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch of another shape finds no room beside the plans of others, they are forgotten."""
    job = wide(layers=4)
    step = under(job, 200)
    step(*batch(100))
    plan: Callable[..., Runnable] = guided.GuidedPlanning.planned
    refusals = iter([outgrow.Infeasible("below", floor_bytes=200 * MIB + 1000, culprit="", because="")])

    def planned(self: object, *given: object) -> Runnable:
        refusal = next(refusals, None)
        if refusal is not None:
            raise refusal
        return plan(self, *given)

    monkeypatch.setattr(guided.GuidedPlanning, "planned", planned)
    gone = ref(step._entry)
    step(*batch(200))
    assert len(step._entries._kept) == 1
    gc.collect()
    assert gone() is None
    refusals = iter([outgrow.Infeasible("below", floor_bytes=400 * MIB, culprit="", because="")])
    with pytest.raises(outgrow.Infeasible):
        step(*batch(300))
    assert len(step._entries._kept) == 1
    refusals = iter([outgrow.Infeasible("below", floor_bytes=200 * MIB + 1000, culprit="", because="")])
    with pytest.warns(Remark, match="to make room"):
        step(*batch(300))


@contextmanager
def exceeding(monkeypatch: pytest.MonkeyPatch, process_bytes: int) -> Iterator[None]:
    """Within it runs are said to take so much."""
    note = guided.GuidedPlanning.note
    with monkeypatch.context() as other:
        other.setattr(guided.GuidedPlanning, "note", reporting(note, process_bytes))
        yield


def test_what_comes_again_and_again_is_not_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that others take in every second step is not forgotten each time, but some calls later."""
    job, given = wide(layers=12), batch(WIDTH)
    step = under(job, 160)
    taken(step, given, 4)
    with exceeding(monkeypatch, 416 * MIB):
        step(*given)
    with pytest.warns(Remark, match="free again"):
        step(*given)
    with exceeding(monkeypatch, 416 * MIB):
        step(*given)
    for _ in range(guided._FORGIVEN_AGAIN - 2):
        with pytest.raises(outgrow.Infeasible):
            step(*given)
    with pytest.warns(Remark, match="free again"):
        step(*given)
    assert step.process_bytes <= 160 * MIB


def test_what_one_shape_has_shown_is_forgiven_before_others_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else took while one shape ran is no reason to refuse another."""
    job = wide(layers=12)
    step, given = under(job, 160), batch(WIDTH)
    taken(step, given, 4)
    with exceeding(monkeypatch, 416 * MIB):
        step(*given)
    assert max(taken(step, batch(WIDTH // 2), 3)) <= 160 * MIB


def test_what_comes_during_a_step_and_stays_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread takes memory while a step runs, and holds it: that step exceeds its budget, later ones do not."""
    job, given = wide(layers=12), batch(WIDTH)
    step = under(job, 200)
    taken(step, given, 4)
    held: list[Tensor] = []
    during(monkeypatch, lambda: held.append(torch.ones(110 * MIB // 4)), times=1)
    step(*given)
    assert step.process_bytes > 200 * MIB
    assert 110 * MIB < max(taken(step, given, 3)) <= 200 * MIB


def test_a_batch_that_is_loaded_ahead_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread loads the next batch while a step runs, beside the one that the step was called with."""
    job, budget = wide(layers=4), 240 * MIB
    step = under(job, 240)
    ahead = [batch(10_000)]
    during(monkeypatch, lambda: ahead.append(batch(10_000)), times=5)
    found = [taken(step, ahead.pop(), 1)[0] for _ in range(5)]
    assert max(found[1:]) <= budget


def during(monkeypatch: pytest.MonkeyPatch, something: Callable[[], object], *, times: int) -> None:
    """Let something happen in each of so many runs, once what is held beside the step has been looked at."""
    carried_out, left = calls.carried_out, [None] * times

    def run(*given: Any) -> Any:
        if left:
            left.pop()
            something()
        return carried_out(*given)

    monkeypatch.setattr(calls, "carried_out", run)


class Failure(Exception):
    """What a run ends with."""


def fail() -> None:
    """End a run."""
    raise Failure


def test_a_first_run_that_failed_leaves_no_old_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program takes after that is made room for."""
    job, given = wide(layers=12), batch(2600)
    step = under(job, 400)
    during(monkeypatch, fail, times=1)
    with pytest.raises(Failure):
        step(*given)
    held = torch.ones(100 * MIB // 4)
    assert held.nbytes < max(taken(step, given, 1)) <= 400 * MIB


def test_what_was_taken_before_a_run_that_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan has room for what came before a call that failed, and not for what comes before the next one too."""
    job, given = wide(layers=12), batch(WIDTH)
    step = under(job, 200)
    before = taken(step, given, 4)[-1]
    room = 200 * MIB - before
    first = torch.ones((room - 12 * MIB) // 4)
    during(monkeypatch, fail, times=1)
    with pytest.raises(Failure):
        step(*given)
    second = torch.ones(30 * MIB // 4)
    assert first.nbytes + second.nbytes < max(taken(step, given, 2)) <= 200 * MIB


def test_what_leaves_no_room_for_any_plan_is_refused_at_once() -> None:
    """A step that would exceed its budget does not run; it does once the memory is free again."""
    job, given = wide(layers=12), batch(WIDTH)
    step = under(job, 120)
    taken(step, given, 4)
    held = torch.ones(115 * MIB // 4)
    with pytest.raises(outgrow.Infeasible):
        step(*given)
    del held
    assert max(taken(step, given, 2)) <= 120 * MIB


def test_a_batch_that_nobody_has_read_yet_comes_with_the_step(tmp_path: Path) -> None:
    """A slice of a mapped file takes memory when the step reads it, which is planned, and not before."""
    job, rows = wide(layers=4), 16_000
    step = under(job, 320)
    taken(step, batch(WIDTH), 3)
    np.zeros((3 * rows, WIDTH), dtype=np.float32).tofile(tmp_path / "data.bin")
    data = torch.from_file(str(tmp_path / "data.bin"), size=3 * rows * WIDTH).view(3 * rows, WIDTH)
    for x in data.split(rows):
        assert max(taken(step, (x, torch.randint(0, 10, (rows,))), 1)) <= 320 * MIB


def test_a_first_run_that_exceeded_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else took while the first step ran ends neither it nor steps of other shapes."""
    job, given = wide(layers=4), batch(WIDTH)
    step = under(job, 80)
    with exceeding(monkeypatch, 416 * MIB):
        step(*given)
    with pytest.warns(Remark, match="free again"):
        step(*given)
    assert max(taken(step, given, 2) + taken(step, batch(WIDTH // 2), 2)) <= 80 * MIB


def test_what_was_taken_after_a_function_failed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is called as it is, and fails in its first call, is not called beside what leaves it no room."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    job, given = wide(layers=4), batch(WIDTH)
    failures = [Failure()]

    def step(x: Tensor, y: Tensor) -> Tensor:
        if type(x) is Tensor and failures:
            raise failures.pop()
        return job.step(x, y)

    compiled = outgrow.compile(step, model=job.model, optimizer=job.optimizer, memory_budget=200 * MIB)
    with pytest.raises(Failure):
        compiled(*given)
    held = torch.ones(150 * MIB // 4)
    compiled(*given)
    assert not compiled.plan.ran_as_written
    assert held.nbytes < compiled.process_bytes <= 200 * MIB


def test_a_plan_that_has_not_run_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rests after a large batch gives way to others, also where a small one failed in its first run."""
    job, small = wide(layers=8), batch(300)
    step = under(job, 300)
    taken(step, batch(2000), 2)
    during(monkeypatch, fail, times=1)
    with pytest.raises(Failure):
        step(*small)
    held = np.ones(150 * MIB // 8)  # which is not served by what rests
    assert held.nbytes < max(taken(step, small, 2)) <= 300 * MIB


def test_what_rests_is_not_taken_for_room_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that rested when a function was called as it is hides nothing that the program takes in its place."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    job, small = wide(layers=4), batch(1000)
    step = under(job, 200)
    taken(step, small, 2)
    taken(step, batch(6000), 2)
    assert not step.plan.ran_as_written
    taken(step, small, 1)
    held = torch.ones(150 * MIB // 4)
    assert held.nbytes < max(taken(step, small, 2)) <= 200 * MIB


def test_what_comes_little_by_little_is_seen() -> None:
    """A program that holds a little more after each step gets another plan before a step exceeds the budget."""
    job, given = wide(layers=4), batch(WIDTH)
    step, held = under(job, 80), list[Tensor]()
    for _ in range(12):
        assert max(taken(step, given, 1)) <= 80 * MIB
        held.append(torch.ones(3 * MIB // 4))


def test_what_was_let_go_of_is_not_taken_off_what_a_run_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that was planned beside memory which is gone learns from a run that exceeds how much it took itself."""
    monkeypatch.setattr(guided, "_MOST_REGAINED", 0)
    job, given = wide(layers=4), batch(WIDTH)
    step = under(job, 120)
    held = np.ones(60 * MIB // 8)  # which does not rest for later when it goes
    taken(step, given, 4)
    del held
    taken(step, given, 1)
    with exceeding(monkeypatch, 121 * MIB):
        step(*given)
    step(*given)
    assert step.plan.overhead_bytes > 60 * MIB


def test_what_is_read_of_a_mapped_data_set_is_no_overhead(tmp_path: Path) -> None:
    """Its pages stay in the process, and the kernel takes them back when it needs them."""
    job, rows = wide(layers=4), 512
    step = under(job, 80)
    np.zeros((60 * rows, WIDTH), dtype=np.float32).tofile(tmp_path / "data.bin")
    data = np.memmap(tmp_path / "data.bin", dtype=np.float32).reshape(60, rows, WIDTH)
    for rest in np.array_split(data, 6):
        x = torch.from_numpy(rest.mean(0, dtype=np.float32))
        assert max(taken(step, (x, torch.randint(0, 10, (rows,))), 1)) <= 80 * MIB
    assert step.plan.overhead_bytes < 40 * MIB


def test_pages_of_a_file_are_not_held_by_a_tensor_until_it_is_written(tmp_path: Path) -> None:
    """They are not counted of the process either; an update makes them its own, so that no plan may count on them."""
    platform = under(wide(layers=1), 100)._platform
    (tmp_path / "weights").write_bytes(bytes(8 * MIB))
    mapped = torch.from_file(str(tmp_path / "weights"), size=2 * MIB)
    mapped.sum()
    assert platform.held_bytes([mapped.untyped_storage()]) == 0
    mapped[:MIB] += 1
    assert 0 <= platform.held_bytes([mapped.untyped_storage()]) - 4 * MIB < MIB
    shared = torch.ones(2 * MIB).share_memory_()
    assert platform.held_bytes([shared.untyped_storage()]) == 8 * MIB
    assert 0 <= platform.held_bytes([mapped.untyped_storage(), shared.untyped_storage()]) - 12 * MIB < MIB
    assert platform.held_bytes([torch.ones(2 * MIB).untyped_storage()]) == 8 * MIB
