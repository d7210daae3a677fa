"""Weights and optimizer state that rest on the disk between steps are those of the eager training, and can be used."""

import copy
import errno
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils import dlpack

import outgrow
from outgrow.analysis.timeline import memory_over_time
from outgrow.errors import Infeasible, TierFailure
from outgrow.frontends.platforms import on_cpu
from outgrow.frontends.platforms.on_cpu import OnCpu
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.preparing.settings import Settings
from outgrow.plan import Stow
from outgrow.remarks import Remark
from outgrow.runtime import process
from outgrow.runtime.execute import Run
from outgrow.runtime.numbered import Numbered
from outgrow.runtime.program import Call, Program
from outgrow.runtime.rerun import Rerun
from outgrow.runtime.resting import extent_of
from outgrow.units import MIB
from tests.frontends.training import Job, Left, Step, differences, left, left_by

WIDTH, LAYERS = 1024, 6
STATE = 4 * WIDTH * WIDTH * 4 * LAYERS
"""Bytes of weights, gradients and both averages of Adam."""

Compile = Callable[..., outgrow.Step]


def heavy() -> Job:
    """A perceptron whose weights, at a small batch, are nearly all that it holds, with Adam; one bias is small."""
    torch.manual_seed(0)
    layers = [module for at in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH, bias=at == 0), nn.Tanh())]
    model = nn.Sequential(*layers)
    batches = [(torch.randn(16, WIDTH), torch.randint(0, WIDTH, (16,))) for _ in range(4)]
    return Job(model, Adam(model.parameters(), lr=1e-3), batches)


def clearing(job: Job) -> Step:
    """The step that clears gradients first, and so leaves its own."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        job.optimizer.zero_grad()
        loss = F.cross_entropy(job.model(x), y)
        loss.backward()
        job.optimizer.step()
        return loss

    return step


@pytest.fixture
def compiled(
    disk_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    plans_found_quickly: None,  # noqa: ARG001
) -> Iterator[Compile]:
    """Compile a job's step under a budget, for a machine whose rates need no measuring and without known costs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
    monkeypatch.setattr(on_cpu, "this_machine", lambda _folder: described_machine("xeon-2core-disk"))
    steps: list[outgrow.Step] = []

    def make(job: Job, budget: int = 3 * STATE // 4, step: Step | None = None) -> outgrow.Step:
        steps.append(
            outgrow.compile(
                step or clearing(job),
                model=job.model,
                optimizer=job.optimizer,
                memory_budget=budget,
                offload_dir=disk_folder,
            )
        )
        return steps[-1]

    yield make
    for step in steps:
        step.close()


def resting(job: Job) -> int:
    """How many weights and averages of a job rest on the disk."""
    averages = [value for entry in job.optimizer.state.values() for value in entry.values()]
    return sum(extent_of(tensor.untyped_storage()) is not None for tensor in (*job.model.parameters(), *averages))


def sums(job: Job) -> list[int]:
    """The bits of weights and averages, added up: copies of them would count as the process's."""
    averages = [value for entry in job.optimizer.state.values() for value in entry.values()]
    return [int(tensor.detach().view(torch.int32).sum()) for tensor in (*job.model.parameters(), *averages)]


def by_eager(scenario: Callable[[Job, Step], Sequence[object]]) -> Left:
    """What a heavy job leaves after a scenario without us."""
    job = heavy()
    return left_by(scenario, job, clearing(job))


def plain(job: Job, step: Step) -> list[object]:
    """Four batches, one after the other."""
    return [step(*pair) for pair in job.batches]


def evaluated(job: Job, step: Step) -> list[object]:
    """The model is evaluated, saved and copied between steps."""
    returned: list[object] = []
    for number, pair in enumerate(job.batches):
        returned.append(step(*pair))
        if number < 2:  # copies count as the process's, and the first plans are made of what it holds
            continue
        saved = io.BytesIO()
        torch.save((job.model.state_dict(), job.optimizer.state_dict()), saved)
        saved.seek(0)
        weights, state = torch.load(saved)
        twin = copy.deepcopy(job.model)
        with torch.no_grad():
            returned.append(float(job.model(pair[0]).sum()))
            assert torch.equal(job.model(pair[0]), twin(pair[0]))
        assert all(torch.equal(value, weights[name]) for name, value in job.model.state_dict().items())
        del saved, weights, state, twin  # there is no room for them beside a step
    return returned


def edited(job: Job, step: Step) -> list[object]:
    """Weights and state are written between steps, and loaded."""
    returned: list[object] = []
    checkpoint = copy.deepcopy((job.model.state_dict(), job.optimizer.state_dict()))
    for number, pair in enumerate(job.batches):
        returned.append(step(*pair))
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.mul_(0.99)
        if number == 1:
            job.model.load_state_dict(checkpoint[0])
            job.optimizer.load_state_dict(checkpoint[1])
    return returned


def loaded(job: Job, step: Step) -> list[object]:
    """Weights and state come from a file between steps, and what was read is still there."""
    returned = [step(*pair) for pair in job.batches[:2]]
    with tempfile.TemporaryFile() as saved:  # in memory it would count as the process's
        torch.save((job.model.state_dict(), job.optimizer.state_dict()), saved)
        returned.append(step(*job.batches[2]))
        saved.seek(0)
        weights, state = torch.load(saved)
    job.model.load_state_dict(weights)
    job.optimizer.load_state_dict(state)
    del weights
    return [*returned, step(*job.batches[3])]


def eager_between(job: Job, step: Step) -> list[object]:
    """Every second step is an eager one."""
    eager = clearing(job)
    return [(eager if number % 2 else step)(*pair) for number, pair in enumerate(job.batches)]


@pytest.mark.parametrize("scenario", [plain, evaluated, edited, loaded, eager_between])
def test_what_rests_on_the_disk_is_the_model(
    scenario: Callable[[Job, Step], Sequence[object]], compiled: Compile
) -> None:
    """Whatever is done with the model between steps, the bits are those of the eager training."""
    expected, job = by_eager(scenario), heavy()
    counts: list[int] = []
    step = compiled(job)

    def counted(*pair: Tensor) -> object:
        returned = step(*pair)
        counts.append(resting(job))
        return returned

    assert differences(left_by(scenario, job, counted), expected) == []
    assert min(counts) > 0


@pytest.mark.parametrize("share", [0.3, 0.5, 0.75])
def test_weights_and_state_need_not_fit(share: float, compiled: Compile) -> None:
    """With less memory than weights, gradients and averages take, the step trains within its budget."""
    expected, job = by_eager(plain), heavy()
    budget = int(share * STATE)
    step = compiled(job, budget)
    try:
        found = left_by(plain, job, step)
    except Infeasible as refusal:  # what the process holds beside the step differs from day to day
        assert budget < refusal.floor_bytes < STATE * 0.6
        return
    assert differences(found, expected) == []
    assert step.process_bytes <= budget
    assert any(isinstance(decision, Stow) for decision in step.current.decisions)
    simulated, measured = step.traces.simulated, step.traces.measured
    assert measured is not None
    held = [[tier for _, _, tier in memory_over_time(trace.events)] for trace in (simulated, measured)]
    assert max(held[0]) == max(held[1])
    assert held[0][-1] == held[1][-1]


def test_a_closed_step_brings_weights_home(compiled: Compile) -> None:
    """`close` frees the file, so what rested there is in memory again, the same bits."""
    job = heavy()
    step = compiled(job)
    plain(job, step)
    before = left(job)
    assert resting(job) > 0
    step.close()
    assert resting(job) == 0
    assert differences(left(job), before) == []


def test_weights_without_room_in_memory_stay_on_the_disk(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is larger than the machine's memory can be closed, read, and trained on."""
    expected = by_eager(plain)
    job = heavy()
    compiled_step = compiled(job)

    def closed_between(job: Job, step: Step) -> list[object]:
        returned: list[object] = [step(*pair) for pair in job.batches[:2]]
        count, before = resting(job), sums(job)
        with monkeypatch.context() as full:
            full.setattr(process, "available_bytes", lambda: 0)
            with pytest.warns(Remark, match="stays on the disk"):
                compiled_step.close()
        assert resting(job) == count > 0
        assert sums(job) == before
        return [*returned, *(step(*pair) for pair in job.batches[2:])]

    assert differences(left_by(closed_between, job, compiled_step), expected) == []


@pytest.mark.usefixtures("compiled")
def test_weights_outlive_their_step() -> None:
    """When nobody refers to the step any more, the model is still there."""
    expected, job = by_eager(plain), heavy()
    step = outgrow.compile(clearing(job), model=job.model, optimizer=job.optimizer, memory_budget=3 * STATE // 4)
    found, before = left_by(plain, job, step), sums(job)
    del step
    assert resting(job) > 0
    assert sums(job) == before
    assert differences(found, expected) == []


def test_a_weight_that_others_see_stays(compiled: Compile) -> None:
    """A weight whose memory NumPy knows is not moved: the array goes on showing it."""
    expected, job = by_eager(plain), heavy()
    first = next(job.model.parameters())
    array = first.detach().numpy()
    step = compiled(job)
    assert differences(left_by(plain, job, step), expected) == []
    assert extent_of(first.untyped_storage()) is None
    assert torch.equal(torch.from_numpy(array), first.detach())
    assert resting(job) > 0


def test_what_was_loaded_and_others_see_stays(compiled: Compile) -> None:
    """An average that came from a file is moved, unless NumPy shows it: the array goes on showing it."""

    def shown(job: Job, step: Step) -> list[object]:
        returned = [step(*job.batches[0])]
        with tempfile.TemporaryFile() as saved:
            torch.save(job.optimizer.state_dict(), saved)
            saved.seek(0)
            job.optimizer.load_state_dict(torch.load(saved))
        average = job.optimizer.state[next(job.model.parameters())]["exp_avg"]
        array = average.numpy()
        returned += [step(*job.batches[1]), step(*job.batches[2])]
        assert torch.equal(torch.from_numpy(array), average)
        return returned

    expected, job = by_eager(shown), heavy()
    assert differences(left_by(shown, job, compiled(job)), expected) == []
    assert resting(job) > 0


WAYS_TO_SEE: dict[str, Callable[[torch.Tensor], object]] = {
    "numpy": lambda weight: weight.numpy(),
    "numpy by DLPack": np.from_dlpack,
    "DLPack": torch.from_dlpack,
    "a capsule of DLPack": lambda weight: torch.from_dlpack(vars(dlpack)["to_dlpack"](weight)),
}


@pytest.mark.parametrize("way", WAYS_TO_SEE)
def test_a_weight_that_others_begin_to_see_stays_from_then_on(way: str, compiled: Compile) -> None:
    """The address of a weight is given away between two steps: the next step is planned anew without moving it."""

    def shown(job: Job, step: Step) -> list[object]:
        returned = [step(*job.batches[0]), step(*job.batches[1])]
        arrays = [WAYS_TO_SEE[way](parameter.detach()) for parameter in job.model.parameters()]
        returned += [step(*job.batches[2]), step(*job.batches[3])]
        seen = list(map(torch.as_tensor, arrays))
        assert all(torch.equal(one, other) for one, other in zip(seen, job.model.parameters(), strict=True))
        return returned

    expected, job = by_eager(shown), heavy()
    assert differences(left_by(shown, job, compiled(job)), expected) == []


@pytest.mark.parametrize(("function", "copies"), [("pwritev", 0), ("preadv", 0), ("preadv", 3)])
def test_a_failing_disk_loses_nothing(
    function: str, copies: int, compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk fails before the first update, the model is what it was, and the next call trains on."""
    expected, job = by_eager(plain), heavy()
    step = compiled(job)
    torch.manual_seed(1)
    returned = [step(*job.batches[0]), step(*job.batches[1])]
    before = sums(job)
    original, left_over = getattr(os, function), [copies]
    is_updating: list[bool] = []
    apply, play = Run._apply, Rerun._play

    def applied(run: Run, call: Call) -> int:
        is_updating.append(call.updates)
        return apply(run, call)

    def played(run: Rerun, part: Numbered) -> None:
        is_updating.append(part.call.updates)
        play(run, part)

    def broken(*arguments: object) -> int:
        left_over[0] -= 1
        if left_over[0] < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_apply", applied)
        patch.setattr(Rerun, "_play", played)
        patch.setattr(os, function, broken)
        with pytest.raises(TierFailure):
            step(*job.batches[2])
    if any(is_updating):
        pytest.skip("the disk was first asked after an update")
    assert sums(job) == before
    returned += [step(*job.batches[2]), step(*job.batches[3])]
    assert differences(left(job, returned), expected) == []


def test_state_that_a_step_does_not_use_rests_on(compiled: Compile) -> None:
    """Steps that only add to gradients leave the averages where they are, in less than these take."""
    budget = STATE // 4 + 44 * MIB

    def accumulating(job: Job) -> Step:
        def step(x: Tensor, y: Tensor, *, is_last: bool) -> Tensor:
            loss = F.cross_entropy(job.model(x), y)
            loss.backward()
            if is_last:
                job.optimizer.step()
                job.optimizer.zero_grad()
            return loss

        return step

    def by_twos(job: Job, step: Step) -> list[object]:
        return [step(*pair, is_last=number % 2 == 1) for number, pair in enumerate(job.batches)]

    eager = heavy()
    expected = left_by(by_twos, eager, accumulating(eager))
    job = heavy()
    step = compiled(job, budget, accumulating(job))
    assert differences(left_by(by_twos, job, step), expected) == []
    job.optimizer.zero_grad()
    step(*job.batches[0], is_last=False)
    assert step.process_bytes <= budget < STATE * 3 // 4
    assert resting(job) >= LAYERS
    throughout = [decision for decision in step.current.decisions if isinstance(decision, Stow) and not decision.before]
    assert len(throughout) >= LAYERS


def test_two_steps_share_a_model(compiled: Compile) -> None:
    """Each has its own file; whichever runs next finds the weights that the other one left."""
    expected, job = by_eager(plain), heavy()
    steps = [compiled(job), compiled(job, STATE // 2 + 40 * MIB)]

    def alternating(job: Job, _step: Step) -> list[object]:
        return [steps[number % 2](*pair) for number, pair in enumerate(job.batches)]

    assert differences(left_by(alternating, job, clearing(job)), expected) == []


def test_what_rests_comes_home_where_the_step_fits(compiled: Compile) -> None:
    """The second plan moves nothing, so operators would work on memory of the file for ever."""
    job = heavy()
    step = compiled(job)
    for pair in job.batches[:2]:
        step(*pair)
    assert resting(job), "under the small budget weights rest on the disk"
    roomy = compiled(job, 3 * STATE // 2)
    roomy(*job.batches[2])
    assert not roomy.plan.ran_as_written
    assert not resting(job)


def test_what_rests_comes_home_where_a_step_runs_as_written(compiled: Compile) -> None:
    """Whichever step's file it is in; a step that closes leaves alone what rests in another one's."""
    job = heavy()
    compiled(job)(*job.batches[0])

    def weights_rest() -> bool:
        return any(extent_of(weight.untyped_storage()) for weight in job.model.parameters())

    evaluated = torch.no_grad()(lambda x: job.model(x).sum())
    evaluation = outgrow.compile(evaluated, model=job.model, memory_budget=3 * STATE)
    evaluation.close()
    assert weights_rest()
    evaluation(job.batches[1][0])
    assert evaluation.plan.ran_as_written
    assert not weights_rest()
    evaluation.close()


def test_what_was_read_of_another_steps_state_is_given_back(compiled: Compile) -> None:
    """Averages that a checkpoint reads from the disk take no memory in an evaluation, which knows nothing of them."""
    job, budget = heavy(), 3 * STATE // 4
    train = compiled(job, budget)
    for pair in job.batches[:2]:
        train(*pair)
    evaluated = torch.no_grad()(lambda x: job.model(x).sum())
    evaluation = outgrow.compile(evaluated, model=job.model, memory_budget=budget)
    for x, _ in job.batches[:3]:
        evaluation(x)
    assert resting(job), "averages rest on the disk"
    with tempfile.TemporaryFile() as saved:
        torch.save(job.optimizer.state_dict(), saved)
        evaluation(job.batches[3][0])
    assert evaluation.process_bytes <= budget
    evaluation.close()


@pytest.mark.usefixtures("compiled")
def test_plans_take_turns_on_a_small_disk(disk_folder: Path) -> None:
    """What the next plan wants in memory comes home first, where the disk has no room for what rests by both."""
    platform = OnCpu(Settings.of("1GiB", offload_dir=disk_folder, disk_budget="3MiB"))
    tensors = {name: torch.full((2 * MIB,), at, dtype=torch.uint8) for at, name in enumerate("ab")}
    storages = {name: tensor.untyped_storage() for name, tensor in tensors.items()}
    for name in "aba":
        rests, sizes = frozenset(name), dict.fromkeys("ab", 2 * MIB)
        program = Program((), {}, {}, sizes, offsets={}, lasting=rests, stowed=rests, results=())
        spill = platform.make_ready(program, tensors, 0)
        assert spill is not None
        spill.arrange(storages, program.stowed, {name: 2 * MIB})
        assert [other for other in "ab" if extent_of(storages[other])] == [name]
    assert [int(tensor.max()) for tensor in tensors.values()] == [0, 1]
    platform.close()


def test_gradients_that_rest_are_not_overwritten(compiled: Compile) -> None:
    """Who keeps the gradients of a step finds them unchanged after the next ones."""
    job = heavy()
    step = compiled(job, STATE // 2 + 40 * MIB)
    kept: list[Tensor] = []
    copies: list[Tensor] = []
    for pair in job.batches:
        step(*pair)
        gradient = next(job.model.parameters()).grad
        assert gradient is not None
        kept.append(gradient)
        copies.append(gradient.clone())
    assert all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))
    assert all(not torch.equal(one, other) for one, other in pairwise(copies))
