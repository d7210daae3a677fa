"""Does a step leave to the rest of the program what the step as written would leave: versions, state, room?"""

import errno
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import outgrow
from outgrow.errors import Infeasible, TierFailure, TornState
from outgrow.frontends import guided, within_budget
from outgrow.frontends.entry import Runnable
from outgrow.frontends.runs import Runs
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from outgrow.remarks import Remark
from outgrow.runtime.execute import Run
from outgrow.runtime.rerun import Rerun
from tests.frontends.training import Job, reporting, wide

AMPLE = "10TiB"
pytestmark = pytest.mark.usefixtures("no_room_is_ample")


def trained(job: Job) -> outgrow.Step[..., Tensor]:
    """The step of a job, planned."""
    return outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=AMPLE)


def test_autograd_sees_that_a_step_has_written_parameters() -> None:
    """A graph that eager mode keeps over a step is refused, as it is over the step as written."""
    job = wide(layers=2)
    step, (x, y) = trained(job), job.batches[0]
    for _ in range(3):
        kept = job.model(x).sum()
        step(x, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            kept.backward()


def test_a_step_within_another_is_part_of_it() -> None:
    """Whether it has been called before, or not: results are those of both as written."""
    losses: list[list[Tensor]] = []
    for compiled in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 8)

        def loss_of(x: Tensor, model: nn.Module = model) -> Tensor:
            return model(x).square().mean()

        inner: Callable[[Tensor], Tensor] = loss_of
        if compiled:
            inner = outgrow.compile(loss_of, model=model, memory_budget=AMPLE)

        def step(
            x: Tensor, inner: Callable[[Tensor], Tensor] = inner, optimizer: torch.optim.Optimizer = optimizer
        ) -> Tensor:
            loss = inner(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        outer = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=AMPLE) if compiled else step
        losses.append([outer(x), outer(x)])
        with torch.no_grad():
            losses[-1].append(inner(x))
        losses[-1] += [outer(x), outer(x)]
    assert all(map(torch.equal, *losses))


def test_a_step_returns_tensors_of_the_training_themselves() -> None:
    """Parameters, buffers, state, gradients and the batch; a new leaf wants a gradient where it does in eager mode."""
    linear, norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
    model = nn.Sequential(linear, norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        held = [weight, norm.running_mean, optimizer.state[weight]["momentum_buffer"], weight.grad, x]
        double = weight * 2
        return {"held": held, "leaf": double.detach().requires_grad_(), "detached": double.detach()}

    weight, found = linear.weight, dict[str, Any]()
    compiled = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=AMPLE)
    for _ in range(3):
        x = torch.randn(4, 8)
        found = compiled(x)
        held = [weight, norm.running_mean, optimizer.state[weight]["momentum_buffer"], weight.grad, x]
        assert all(one is other for one, other in zip(found["held"], held, strict=True))
        assert found["leaf"].is_leaf
        assert found["leaf"].requires_grad
        assert not found["detached"].requires_grad
    optimizer.zero_grad()
    found["held"][0].square().sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, 2 * weight)


def test_other_steps_of_a_torn_model_refuse() -> None:
    """What was compiled before the failure does not go on; what is compiled after it does."""
    job, other = wide(layers=2), wide(layers=2)
    first, second, elsewhere = trained(job), trained(job), trained(other)
    apply, failing = Run._apply, pytest.MonkeyPatch()

    def failed(run: Run, call: object) -> int:
        born = apply(run, call)  # pyright: ignore[reportArgumentType]
        if run.progress.updating:
            raise TierFailure(OSError(errno.EIO, "no more").strerror)
        return born

    failing.setattr(Run, "_apply", failed)
    with pytest.raises(TierFailure):
        first(*job.batches[0])
    failing.undo()
    for step in (first, second):
        with pytest.raises(TornState, match="compile the step anew"):
            step(*job.batches[0])
    elsewhere(*other.batches[0])
    trained(job)(*job.batches[0])


def test_steps_of_a_part_of_a_torn_model_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that they share is one step ahead, or not."""
    job = wide(layers=2)
    layer = next(module for module in job.model.modules() if isinstance(module, nn.Linear))
    whole = trained(job)
    inner = outgrow.compile(lambda x: layer(x).sum(), model=nn.Sequential(layer), memory_budget=AMPLE)
    outside = outgrow.compile(lambda x: x.sum(), model=nn.Linear(1, 1), memory_budget=AMPLE)

    def failed(run: Run, call: object) -> int:
        born = apply(run, call)  # pyright: ignore[reportArgumentType]
        if run.progress.updating:
            raise TierFailure(OSError(errno.EIO, "no more").strerror)
        return born

    apply = Run._apply
    monkeypatch.setattr(Run, "_apply", failed)
    with pytest.raises(TierFailure):
        whole(*job.batches[0])
    monkeypatch.undo()
    with pytest.raises(TornState):
        inner(job.batches[0][0])
    outside.close()


def test_a_scheduler_that_raises_behind_the_updates_tears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the step is done by then, and eager mode goes on as well."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)
    weights: list[Tensor] = []
    for is_planned in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2)

        def step(
            x: Tensor,
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            scheduler: torch.optim.lr_scheduler.LRScheduler = scheduler,
        ) -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

        run = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=AMPLE) if is_planned else step
        for _ in range(2):
            run(torch.ones(4, 8))
        for _ in range(3):
            with pytest.raises(ValueError, match="Tried to step"):
                run(torch.ones(4, 8))
        weights.append(model.weight.detach())
    assert torch.equal(*weights)


def test_all_buffers_over_one_storage_are_put_back_after_a_failure() -> None:
    """They are views of one tensor, of which each is written in the forward pass."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.zeros(8)
            self.register_buffer("first", flat[:4])
            self.register_buffer("second", flat[4:])
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.get_buffer("first").add_(1)
                self.get_buffer("second").add_(1)
            return torch.linalg.cholesky(x) + self.linear(x)

    model = Views()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step = outgrow.compile(train, model=model, optimizer=optimizer, memory_budget=AMPLE)
    step(torch.eye(4))
    with pytest.raises(RuntimeError, match="cholesky"):
        step(-torch.eye(4))
    assert model.get_buffer("first").tolist() == model.get_buffer("second").tolist() == [1.0] * 4


def test_arguments_over_one_storage_stay_where_they_are() -> None:
    """What moves one of them would move the memory of the other."""

    def step(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x.sum() + y.sum() + z.sum()

    x, z = torch.ones(2, 4), torch.ones(3)
    given = capture(step, [], [], (x, x.view(4, 2), z)).given(Training((), ()), (x, x.view(4, 2), z))
    assert given.shared == {"batch.0", "batch.1"}


def test_a_tensor_outside_is_put_back_after_a_failure() -> None:
    """A queue that the forward pass moves is as it was if the step fails before an update."""
    job = wide(layers=2)
    queue, (x, y) = torch.arange(4.0), job.batches[0]

    def moving(x: Tensor, y: Tensor) -> Tensor:
        queue.copy_(queue.roll(1))
        return job.step(x * queue.mean(), y)

    step = outgrow.compile(moving, model=job.model, optimizer=job.optimizer, memory_budget=AMPLE)
    step(x, y)
    before, play, calls, failing = queue.clone(), Rerun._play, iter(range(4)), pytest.MonkeyPatch()

    def failed(run: Rerun, part: object) -> None:
        play(run, part)  # pyright: ignore[reportArgumentType]
        if next(calls, None) is None:
            assert not torch.equal(queue, before)
            raise KeyboardInterrupt

    failing.setattr(Rerun, "_play", failed)
    with pytest.raises(KeyboardInterrupt):
        step(x, y)
    failing.undo()
    assert torch.equal(queue, before)
    step(x, y)
    assert torch.equal(queue, before.roll(1))


def test_what_was_held_for_one_call_is_forgotten() -> None:
    """A step that would exceed its budget because others hold memory is refused, and goes on once that is free."""
    job = wide(layers=4)
    alone = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=AMPLE)
    for _ in range(3):
        alone(*job.batches[0])
    budget = alone.plan.floor_bytes + (16 << 20)
    step = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget)
    for _ in range(3):
        step(*job.batches[0])
    held = torch.ones(256 << 18)
    with pytest.raises(Infeasible):
        step(*job.batches[0])
    del held
    for _ in range(3):
        step(*job.batches[0])
        assert step.process_bytes <= budget


def test_a_plan_makes_room_for_what_was_taken_since() -> None:
    """What the process holds beside the step by now is within the budget before a run shows it."""
    job, budget = wide(layers=8), 128 << 20
    step = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget)
    for _ in range(3):
        step(*job.batches[0])
    before = step.process_bytes
    held = torch.ones(40 << 18)
    step(*job.batches[0])
    assert before + held.nbytes > budget
    assert step.process_bytes <= budget


def test_a_plan_makes_room_for_what_planning_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What planning again leaves in the process, which no run has shown yet, is within the budget at once."""
    job, budget, left = wide(layers=8), 128 << 20, list[Tensor]()
    plan: Callable[..., Runnable] = guided.GuidedPlanning.planned

    def leaving(self: object, given: object, runs: Runs, spare_bytes: int = 0) -> Runnable:
        found = plan(self, given, runs, spare_bytes)
        if runs.count and not left:
            left.append(torch.ones(40 << 18))
        return found

    monkeypatch.setattr(guided.GuidedPlanning, "planned", leaving)
    step = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget)
    taken: list[int] = []
    for _ in range(4):
        step(*job.batches[0])
        taken.append(step.process_bytes)
    assert left
    assert max(taken) <= budget


@pytest.mark.parametrize("times", [1, 2])
def test_what_others_take_during_a_step_is_forgiven_once(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that takes memory while a step runs ends the training only if it does so in the next one too."""
    job, budget = wide(layers=12), 160 << 20
    step = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget)
    for _ in range(4):
        step(*job.batches[0])
    with monkeypatch.context() as other:
        other.setattr(guided.GuidedPlanning, "note", reporting(guided.GuidedPlanning.note, budget + (256 << 20)))
        step(*job.batches[0])
        if times == 2:
            with pytest.warns(Remark, match="free again"):
                step(*job.batches[0])
    if times == 2:
        with pytest.raises(outgrow.Infeasible):
            step(*job.batches[0])
        return
    with pytest.warns(Remark, match="free again"):
        step(*job.batches[0])
    for _ in range(2):
        assert step.process_bytes <= budget
        step(*job.batches[0])


def test_what_python_holds_is_no_overhead_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that keeps tensors which no graph keeps exceeds the budget once, and is planned from then on."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    model, budget = nn.Linear(1024, 1024), 128 << 20

    def evaluation(x: Tensor) -> Tensor:
        kept = [x]
        with torch.no_grad():
            for _ in range(40):
                kept.append(torch.relu(model(kept[-1])))
        return kept[-1].sum()

    step, x = outgrow.compile(evaluation, model=model, memory_budget=budget), torch.randn(1024, 1024)
    step(x)
    assert step.process_bytes > budget
    for _ in range(2):
        assert torch.equal(step(x), evaluation(x))
        assert step.process_bytes <= budget


def test_a_function_for_which_others_leave_no_room_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program takes beside a step that runs as it is written is seen before it exceeds the budget."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    job, budget = wide(layers=12), 400 << 20
    step = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget)
    for _ in range(2):
        step(*job.batches[0])
    assert step.plan.ran_as_written
    held = torch.ones((budget - step.process_bytes + (24 << 20)) // 4)
    step(*job.batches[0])
    assert held.nbytes < step.process_bytes <= budget
    assert not step.plan.ran_as_written


def test_a_function_that_is_planned_at_last_is_looked_at_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it ran as it is written, nobody asked what it finds outside."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    factor, budget = {"now": 1.0}, 400 << 20

    def losses(*, compiled: bool) -> list[float]:
        job = wide(layers=12)

        def step(x: Tensor, y: Tensor) -> Tensor:
            return job.step(x * factor["now"], y)

        run, held = step, list[Tensor]()
        if compiled:
            run = outgrow.compile(step, model=job.model, optimizer=job.optimizer, memory_budget=budget)
        found: list[float] = []
        for at in range(5):
            factor["now"] = 1.0 if at < 2 else 3.0
            if at == 3 and isinstance(run, outgrow.Step):
                assert run.plan.ran_as_written
                held.append(torch.ones((budget - run.process_bytes + (24 << 20)) // 4))
            found.append(run(*job.batches[0]).item())
        assert not (isinstance(run, outgrow.Step) and run.plan.ran_as_written)
        return found

    assert losses(compiled=True) == losses(compiled=False)


def test_a_plan_that_exceeds_the_budget_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another plan of the same step has shown more overhead before."""
    job, budget = wide(layers=2), 1 << 30
    step = outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget)
    x, y = job.batches[0]
    for _ in range(4):
        step(x, y)
    took = step.plan.overhead_bytes + (budget // 8)
    step._guided._own_bytes = 2 * took
    with monkeypatch.context() as other:
        other.setattr(step._platform, "held_at_most", lambda *_: budget + 1 - took)
        other.setattr(guided.GuidedPlanning, "note", reporting(guided.GuidedPlanning.note, budget + 1))
        step(x, y)
    step(x, y)
    assert step.plan.overhead_bytes >= 2 * took


def test_room_that_another_step_takes_is_no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ample room attributes are not looked at; one that makes the step exceed the budget leaves it its plans."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 16))
    depth, batch = {"now": 1}, torch.randn(2048, 512)

    def whole(x: Tensor) -> Tensor:
        for _ in range(depth["now"]):
            x = torch.nn.functional.gelu(model[0](x))
        loss = model[1](x).square().mean()
        loss.backward()
        model.zero_grad()
        return loss.detach()

    step = outgrow.compile(whole, model=model, memory_budget="120MiB")
    for now in (1, 1, 1, 40, 40, 1):
        depth["now"] = now
        losses = [step(batch)]
        losses.append(whole(batch))
        assert torch.equal(*losses)
