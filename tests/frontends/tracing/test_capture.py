"""Does a captured step do what the step does, to the last bit, and is everything else refused?"""

import copy
import json
import math
import random
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import SGD, Adam, RAdam

import outgrow
from outgrow.errors import Uncapturable
from outgrow.frontends.fake import generator
from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.signature import glance, signature
from outgrow.frontends.user.training.state import BufferSlot, ParameterSlot, Training, state_tensors
from outgrow.ir.graph import Role
from outgrow.ir.text import parse_graph, print_graph
from outgrow.ir.verify import verify
from outgrow.runtime.execute import Run
from outgrow.runtime.repeated import execute
from tests.frontends.replay import placement, replay
from tests.frontends.steps import JOBS, Job, adam, gradients_accumulated, gradients_cleared_first, mlp, sgd


def made(make: Callable[[], Job]) -> Job:
    torch.manual_seed(0)
    return make()


def captured(job: Job, *batch: Tensor) -> Captured:
    return capture(job.step, job.models, job.optimizers, batch)


def same_bits(left: object, right: object) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return placement(left) == placement(right) and torch.equal(left.detach(), right.detach())
    return left == right


def assert_same_state(left: Job, right: Job) -> None:
    ours, theirs = (state_tensors(Training(job.models, job.optimizers)) for job in (left, right))
    assert ours.keys() == theirs.keys()
    assert [slot for slot in ours if not same_bits(ours[slot], theirs[slot])] == []


@pytest.mark.parametrize("make", JOBS, ids=lambda make: make.__name__)
def test_three_steps_have_the_bits_of_eager(make: Callable[[], Job]) -> None:
    """Returned values, parameters, buffers, gradients, optimizer and generator state equal those of eager."""
    eager, ours = made(make), made(make)
    training = Training(ours.models, ours.optimizers)
    for seed in range(3):
        torch.manual_seed(seed)
        batch = eager.batch()
        expected, drawn = eager.step(*batch), torch.get_rng_state()
        torch.manual_seed(seed)
        batch = ours.batch()
        step = captured(ours, *batch)
        verify(step.graph)
        assert parse_graph(print_graph(step.graph)) == step.graph
        assert step.guards_hold(training)
        found = replay(step, training, batch, {})
        assert torch.equal(torch.get_rng_state(), drawn)
        leaves, structure = pytree.tree_flatten(found)
        expected_leaves, expected_structure = pytree.tree_flatten(expected)
        assert structure == expected_structure
        assert all(map(same_bits, leaves, expected_leaves))
        assert_same_state(ours, eager)


@pytest.mark.parametrize("make", JOBS, ids=lambda make: make.__name__)
def test_one_capture_serves_all_calls_of_its_signature(make: Callable[[], Job]) -> None:
    """From the second step on the signature stays, and one captured step serves new batches and rates."""
    eager, ours = made(make), made(make)
    training = Training(ours.models, ours.optimizers)
    kept: dict[object, Captured] = {}
    for seed in range(4):
        for job in (eager, ours):
            for optimizer in job.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["lr"] / 2
        torch.manual_seed(seed)
        eager.step(*eager.batch())
        torch.manual_seed(seed)
        batch = ours.batch()
        key = signature(ours.step, ours.models, ours.optimizers, batch, {})
        if key not in kept:
            kept[key] = captured(ours, *batch)
        replay(kept[key], training, batch, {})
        assert_same_state(ours, eager)
    assert len(kept) <= 2


def test_capture_leaves_no_trace() -> None:
    """State, attributes of tensors, hyper-parameters and random generators are as before the capture."""
    job = made(adam)
    job.step(*job.batch())
    batch = job.batch()
    training = Training(job.models, job.optimizers)
    before = {slot: (tensor, tensor.detach().clone()) for slot, tensor in state_tensors(training).items()}
    groups = [dict(group) for group in job.optimizers[0].param_groups]
    generators = (torch.get_rng_state(), random.getstate())
    captured(job, *batch)
    after = state_tensors(training)
    assert before.keys() == after.keys()
    assert all(after[slot] is tensor and torch.equal(tensor, copy) for slot, (tensor, copy) in before.items())
    assert not any(vars(tensor) for tensor in after.values())
    assert [dict(group) for group in job.optimizers[0].param_groups] == groups
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_error_of_the_step_passes_and_everything_is_restored(error: BaseException) -> None:
    """An error that the user's code raises is not masked, and models and optimizers are as before."""
    job = made(adam)

    def step(x: Tensor, y: Tensor) -> None:
        job.step(x, y)
        raise error

    before = state_tensors(Training(job.models, job.optimizers))
    with pytest.raises(type(error)):
        capture(step, job.models, job.optimizers, job.batch())
    after = state_tensors(Training(job.models, job.optimizers))
    assert before.keys() == after.keys()
    assert all(before[slot] is after[slot] for slot in before)
    assert job.optimizers[0].param_groups[0]["lr"] == 1e-2


def test_groups_that_a_refused_step_adds_are_taken_away() -> None:
    """The step can be run in eager mode then, which adds them again."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = SGD([first.weight], lr=0.1)
    groups = optimizer.param_groups

    def step() -> None:
        groups[0]["params"].append(first.bias)
        optimizer.add_param_group({"params": list(second.parameters())})

    with pytest.raises(Uncapturable, match=r"the step changes param_groups\[1\]"):
        capture(step, [first, second], [optimizer])
    assert optimizer.param_groups is groups
    assert [group["params"] for group in groups] == [[first.weight]]


def test_a_parameter_that_a_step_adds_to_a_group_is_refused() -> None:
    """The next step would train it."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = SGD([first.weight], lr=0.1)

    def step() -> None:
        optimizer.param_groups[0]["params"].append(second.weight)

    with pytest.raises(Uncapturable, match="which parameters are in param_groups of optimizer 0"):
        capture(step, [first, second], [optimizer])
    assert [group["params"] for group in optimizer.param_groups] == [[first.weight]]


def test_a_weight_decay_that_becomes_nonzero_trips_the_guard() -> None:
    """What an optimizer skips because a hyper-parameter is 0 is not skipped when it no longer is."""
    job = made(lambda: mlp(SGD, lr=0.1, weight_decay=0.0))
    training = Training(job.models, job.optimizers)
    step = captured(job, *job.batch())
    assert step.guards_hold(training)
    job.optimizers[0].param_groups[0]["lr"] = 0.05
    assert step.guards_hold(training)
    job.optimizers[0].param_groups[0]["weight_decay"] = 0.1
    assert not step.guards_hold(training)


class Bounded(SGD):
    """Goes twice as far if a hyper-parameter is the limit of the class, or no number."""

    limit = float("inf")

    def step(self, closure: Callable[[], float] | None = None) -> None:
        group, before = self.param_groups[0], self.param_groups[0]["lr"]
        group["lr"] = before * 2 if group["clip"] == self.limit or group["clip"] != group["clip"] else before
        super().step(closure)
        group["lr"] = before


def bounded(clip: float) -> Job:
    job = mlp(Bounded, lr=0.1)
    job.optimizers[0].param_groups[0]["clip"] = clip
    return job


@pytest.mark.parametrize("clip", [math.inf, -math.inf, math.nan, 1.0])
@pytest.mark.parametrize("limit", [math.inf, -math.inf])
def test_a_hyper_parameter_may_be_infinite_or_no_number(
    clip: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch is that of eager, its capture serves the next call, and a finite number is another signature."""
    monkeypatch.setattr(Bounded, "limit", limit)
    eager, ours = made(partial(bounded, clip)), made(partial(bounded, clip))
    training, group = Training(ours.models, ours.optimizers), ours.optimizers[0].param_groups[0]
    batch = ours.batch()
    step, key = captured(ours, *batch), signature(ours.step, ours.models, ours.optimizers, batch, {})
    for _ in range(2):
        assert step.guards_hold(training)
        torch.manual_seed(1)
        found = replay(step, training, batch, {})
        torch.manual_seed(1)
        assert same_bits(found, eager.step(*batch))
        assert_same_state(ours, eager)
        assert signature(ours.step, ours.models, ours.optimizers, batch, {}) == key
    group["clip"] = 2.0
    assert (signature(ours.step, ours.models, ours.optimizers, batch, {}) == key) is math.isfinite(clip)


def test_the_step_at_which_an_optimizer_branches_trips_the_guard() -> None:
    """RAdam rectifies from the sixth step on: what was captured before serves until then."""
    job = made(lambda: mlp(RAdam, lr=0.1))
    training = Training(job.models, job.optimizers)
    served: list[bool] = []
    job.step(*job.batch())
    step = captured(job, *job.batch())
    for _ in range(8):
        served.append(step.guards_hold(training))
        if not served[-1]:
            step = captured(job, *job.batch())
        job.step(*job.batch())
    assert served == [True, True, True, True, False, True, True, True]


class Counting(nn.Module):
    """A model that counts its steps in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.count = nn.Buffer(torch.zeros(()))


def counting(change: Callable[[Tensor, Tensor], object]) -> Job:
    """A step that does something else once its counter, changed in some way, is above 2."""
    model = Counting()

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        change(model.count, x)
        loss = model.layer(x).square().sum() if model.count > 2 else model.layer(x).sum()
        loss.backward()
        return loss

    return Job(step, (model,), (), lambda: (torch.ones(2, 4),))


@pytest.mark.parametrize(
    "change",
    [
        lambda count, _: count.add_(1),
        lambda count, _: count.view(1).add_(torch.tensor(1.0)),
        lambda count, _: torch.ops.aten._foreach_add_.Tensor([count], torch.tensor(0.5), alpha=2),
        lambda count, _: count.add_(1).add_(1),
        lambda count, x: count.add_(x.sum()),
        lambda count, _: count.mul_(2),
        lambda count, _: count.add_(0.1),
    ],
    ids=["number", "view", "each", "twice", "by contents", "multiplied", "not whole"],
)
def test_a_step_may_ask_what_it_counts(change: Callable[[Tensor, Tensor], object]) -> None:
    """The branch is that of eager in every call."""
    eager, ours = made(partial(counting, change)), made(partial(counting, change))
    training = Training(ours.models, ours.optimizers)
    for _ in range(5):
        step = captured(ours, *ours.batch())
        assert step.guards_hold(training)
        found, expected = replay(step, training, ours.batch(), {}), eager.step(*eager.batch())
        assert same_bits(found, expected)
        assert_same_state(ours, eager)


@pytest.mark.parametrize("begin", [math.inf, -math.inf, math.nan])
def test_a_counter_may_be_infinite_or_no_number(begin: float) -> None:
    """The branch is that of eager, and holds until there is another number."""
    model = Counting()
    model.count.fill_(begin)

    def step(x: Tensor) -> Tensor:
        number = model.count.item()
        return x * 2 if model.count == math.inf else x * 3 if math.isnan(number) else x * 5

    training = Training((model,), ())
    found = capture(step, [model], [], (torch.ones(2),))
    assert found.guards_hold(training)
    assert same_bits(replay(found, training, (torch.ones(2),), {}), step(torch.ones(2)))
    model.count.fill_(1.0)
    assert not found.guards_hold(training)


def test_a_counter_that_is_not_counted_is_not_known() -> None:
    """What else is done to a number, here by a view, leaves nobody who could say what it is: that is guessed."""
    job = made(partial(counting, lambda count, x: count.view(1).copy_(x[0, :1])))
    assert captured(job, *job.batch()).guesses


def test_a_counter_that_is_exchanged_is_refused() -> None:
    job = made(partial(counting, lambda count, x: torch.ops.aten.set_.source_Tensor(count, x[0, 0].clone())))
    with pytest.raises(Uncapturable):
        captured(job, *job.batch())


def test_roles_say_what_storages_are_to_the_user() -> None:
    """Gradients, state made by the first step, the batch and the generator are told from activations."""
    graph = captured(*(job := made(adam),), *job.batch()).graph
    roles = [storage.role for storage in graph.storages.values()]
    parameters = len(list(job.models[0].parameters()))
    assert roles.count(Role.PARAMETER) == roles.count(Role.GRADIENT) == parameters
    assert roles.count(Role.OPTIMIZER) == 3 * parameters
    assert roles.count(Role.INPUT) == 2 + parameters  # torch.tensor(0.0), the step counter of each parameter.
    assert roles.count(Role.GENERATOR) == 1


def test_gradients_that_stay_are_put() -> None:
    """Gradients that the step leaves behind are results, each with the slot that it belongs to."""
    job = made(gradients_cleared_first)
    step = captured(job, *job.batch())
    assert len(step.puts) == 2
    assert len(step.graph.results) == 3


def test_one_new_tensor_in_two_buffers_is_put_into_both() -> None:
    """As one tensor, whether they shared the old one or not."""
    first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    model = nn.Sequential(first, second)

    def step(x: Tensor) -> None:
        assert first.running_mean is not None
        first.running_mean = second.running_mean = 0.5 * first.running_mean + x.mean(0)

    for _ in range(2):
        puts = capture(step, [model], [], (torch.ones(2, 4),)).puts
        results = {put.slot.name: put.result for put in puts if isinstance(put.slot, BufferSlot)}
        assert results == {"0.running_mean": 0, "1.running_mean": 0}
        second.running_mean = first.running_mean


def test_batch_tensors_are_storages_of_their_own() -> None:
    """A batch that is a slice of a large tensor counts for no more than its own bytes."""
    job = made(gradients_cleared_first)
    data = torch.randn(1000, 8)
    graph = captured(job, data[8:12], torch.zeros(4, dtype=torch.long)).graph
    assert graph.storages["batch.0"].size_bytes == 4 * 8 * 4


def test_a_workload_under_fake_tensors_is_captured_without_memory() -> None:
    """A model that exists only as fake tensors, too large for any machine, gives a graph."""
    with FakeMode():
        model = nn.Linear(1 << 20, 1 << 20)
        optimizer = Adam(model.parameters(), lr=1e-3)
        x = torch.empty(8, 1 << 20)

    def step(x: Tensor) -> Tensor:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    graph = capture(step, [model], [optimizer], (x,)).graph
    verify(graph)
    assert graph.storages["model.weight"].size_bytes == 4 << 40
    assert model.weight.grad is None
    assert not optimizer.state


def test_signature_tells_what_shaped_the_capture() -> None:
    """Another shape, layout, flag, grad, constant or argument is another signature; another rate is not."""
    job = made(sgd)
    model, optimizer = job.models[0], job.optimizers[0]
    x, y = job.batch()

    def key(*args: object) -> object:
        return signature(job.step, job.models, job.optimizers, args, {})

    keys = [key(x, y), key(x[:3], y[:3]), key(x.T.contiguous().T, y), key(x, y, 1), key(x, y, 1.0), key(x, x)]
    model.eval()
    keys.append(key(x, y))
    next(model.parameters()).requires_grad_(False)
    keys.append(key(x, y))
    next(model.parameters()).grad = torch.zeros(16, 8)
    keys.append(key(x, y))
    optimizer.param_groups[0]["nesterov"] = False
    keys.append(key(x, y))
    job.step(x.clone(), y)
    keys.append(key(x, y))
    assert len(set(keys)) == len(keys)
    optimizer.param_groups[0]["lr"] = 0.5
    assert key(x.clone(), y) == keys[-1]
    with pytest.raises(Uncapturable, match="set"):
        key({1, 2})


def test_a_glance_tells_calls_apart() -> None:
    """Other shapes, layouts, structures, numbers and modes are seen at once; other contents are not."""
    job = made(sgd)
    x, y = job.batch()

    def seen(*args: object) -> object:
        return glance(job.models, job.optimizers, args, {})

    calls = [
        (x, y),
        (x[:3], y),
        (x.T.contiguous().T, y),
        ([x, y],),
        ((x, y),),
        ({"x": x, "y": y},),
        ({"y": x, "x": y},),
    ]
    calls += [(x, 1), (x, 1.0), (x, True), (x, None), (x, "1"), ({"x": [x, (y, 2)]},), (OrderedDict(x=x, y=y),)]
    found = [seen(*call) for call in calls]
    with torch.no_grad():
        found.append(seen(x, y))
    job.models[0].eval()
    found.append(seen(x, y))
    assert len(set(found)) == len(found)
    assert seen(x.clone(), y + 1) == found[-1]


def test_a_glance_covers_smaller_batches() -> None:
    """Those of no larger size in any dimension, if nothing else differs."""
    x, y = torch.zeros(4, 6), torch.zeros(4)

    def covers(*args: object) -> bool:
        return glance([], [], (x, {"y": y}, 3), {}).covers(glance([], [], args, {}))

    assert covers(x, {"y": y}, 3)
    assert covers(x[:2, :5], {"y": y[:0]}, 3)
    assert glance([], [], (x, 1.0), {}).covers(glance([], [], (x, 2.0), {}))
    for args in [
        (torch.zeros(5, 1), {"y": y}, 3),
        (torch.zeros(4), {"y": y}, 3),
        (torch.zeros(6, 4).T, {"y": y}, 3),
        (x.double(), {"y": y}, 3),
        (x, {"y": y}, 2),
        (x, {"z": y}, 3),
        (x, [y], 3),
    ]:
        assert not covers(*args)
    larger, smaller = (glance([], [], (OrderedDict(x=rows, y=y),), {}) for rows in (x, x[:1]))
    assert larger.covers(smaller)
    assert not smaller.covers(larger)


# ---- refusals


def made_a_float(loss: Tensor) -> None:
    if float(loss) > 1:  # here
        loss.neg_()


def item(loss: Tensor) -> None:
    sys.stdout.write(f"{loss.item():.3f}")  # here


def dumped(loss: Tensor) -> None:
    json.dumps({"loss": loss.item()})  # here


def numpy(loss: Tensor) -> None:
    loss.detach().numpy()  # here


def mask(loss: Tensor) -> None:
    loss.expand(3)[torch.ones(3) > loss].sum()  # here


@pytest.mark.parametrize("look", [made_a_float, item, dumped, numpy, mask], ids=lambda look: look.__name__)
def test_looking_at_contents_is_refused_at_the_users_line(look: Callable[[Tensor], None]) -> None:
    """The message names file, line and text of the innermost line of the user's, and what to do."""
    job = made(gradients_cleared_first)

    def step(x: Tensor, y: Tensor) -> None:
        loss = job.models[0](x).mean() + y.sum()
        look(loss)

    with pytest.raises(Uncapturable, match=r"test_capture\.py:\d+: `.*# here`: .*(after|outside of) the step"):
        capture(step, job.models, job.optimizers, job.batch())


def test_counting_by_the_largest_number_is_refused_with_a_way_that_is_taken() -> None:
    """The result of `bincount` is as long as its contents say, also where a least length is given.

    Those of a batch are asked, but not what is made of weights.
    """
    model = torch.nn.Linear(3, 3)

    def counted(x: Tensor) -> Tensor:
        return torch.bincount(model(x.float()).argmax(0, keepdim=True), minlength=4)

    def counted_in_fixed_shape(x: Tensor) -> Tensor:
        return torch.zeros(4).index_add_(0, x, torch.ones(3))

    with pytest.raises(Uncapturable, match=r"count with torch\.zeros\(n\)\.index_add_"):
        capture(counted, [model], [], (torch.tensor([0, 1, 1]),))
    capture(counted_in_fixed_shape, [], [], (torch.tensor([0, 1, 1]),))


def test_a_line_without_text_is_named_by_its_number() -> None:
    """The source of a function may be nowhere, as that of one which was made of text."""
    made_of: dict[str, Any] = {}
    exec(compile("def step(x):\n    return (x + 1).numpy()", "/nowhere/step.py", "exec"), made_of)
    with pytest.raises(Uncapturable, match=r"^/nowhere/step\.py:2: this needs the content"):
        capture(made_of["step"], [], [], (torch.ones(1),))


def test_what_a_profiler_has_begun_before_is_not_ended_within() -> None:
    """As the `step` of a profiler does; a range of the step's own is no matter."""
    model, begun = nn.Linear(2, 2), torch.profiler.record_function("begun")

    def step(x: Tensor) -> Tensor:
        with torch.profiler.record_function("own"):
            found = model(x)
        begun.__exit__(None, None, None)
        return found

    with torch.profiler.profile(), begun, pytest.raises(Uncapturable, match=r"step\(\) of a profiler after this one"):
        capture(step, [model], [], (torch.ones(1, 2),))


def test_changes_of_python_state_are_refused() -> None:
    """A rate that a scheduler writes, and Python's random numbers, are named."""
    job = made(sgd)
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizers[0], 1)
    changes = {
        "'lr'.*scheduler.step": scheduler.step,
        "random": random.random,
    }
    for message, change in changes.items():

        def step(x: Tensor, y: Tensor, change: Callable[[], object] = change) -> None:
            job.step(x, y)
            change()

        with pytest.raises(Uncapturable, match=message):
            capture(step, job.models, job.optimizers, job.batch())
        assert job.models[0].training


class InPython(SGD):
    """Keeps its steps in Python: a list of them, or only whether it has made one, by what is not there then."""

    def __init__(self, parameters: Iterable[nn.Parameter], kept: str) -> None:
        super().__init__(parameters, lr=0.1)
        self.kept = kept

    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if self.kept == "list":
                state["step"] = [*state.get("step", ()), 1]
            elif "step" in state:
                del state["step"]
            else:
                state["step"] = 1


@pytest.mark.parametrize(
    ("kept", "what"), [("list", r"state\[0\]\['step'\]"), ("one", "state 'step' of parameter '0.weight'")]
)
def test_an_optimizer_that_keeps_its_steps_in_python_is_told_how_else(kept: str, what: str) -> None:
    """It may be another's code; then the loop can be left as it is."""
    job = made(sgd)
    counting = InPython(job.models[0].parameters(), kept)
    counting.step()
    with pytest.raises(Uncapturable, match=rf"{what}.*in a tensor.*backend=\"outgrow\""):
        capture(counting.step, job.models, [counting])


def test_which_parameters_a_step_leaves_trained_is_seen_and_put_back() -> None:
    """Layers of the two models have the same names."""
    models = [nn.Sequential(nn.Linear(2, 2)) for _ in range(2)]

    def step(x: Tensor) -> Tensor:
        models[0].requires_grad_(requires_grad=False)
        return models[1](models[0](x))

    captured = capture(step, models, [], (torch.ones(1, 2),))
    assert captured.flags == {ParameterSlot(0, "0.weight"): False, ParameterSlot(0, "0.bias"): False}
    assert all(parameter.requires_grad for model in models for parameter in model.parameters())


def test_parameters_that_no_model_owns_are_refused() -> None:
    """A parameter, an optimizer or a gradient that belongs to nothing named is pointed out."""
    job = made(sgd)
    with pytest.raises(Uncapturable, match=r"SGD updates .* no model owns\. Was model= another model than the step's"):
        capture(job.step, [], job.optimizers, job.batch())
    with pytest.raises(Uncapturable, match=r"optimizer.*not named"):
        capture(job.step, [], [], job.batch())
    assert not job.optimizers[0].state
    accumulate = made(gradients_accumulated)
    with pytest.raises(Uncapturable, match="no model owns"):
        capture(accumulate.step, [], [], accumulate.batch())
    job = accumulate
    assert all(parameter.grad is None for parameter in job.models[0].parameters())


def test_new_parameters_after_the_optimizer_are_told() -> None:
    """As `load_state_dict(assign=True)` makes them: the optimizer has the old ones."""
    job = made(sgd)
    job.models[0].load_state_dict(job.models[0].state_dict(), assign=True)
    with pytest.raises(Uncapturable, match=r"load_state_dict\(assign=True\).* after the optimizer"):
        capture(job.step, job.models, job.optimizers, job.batch())


def test_a_gradient_of_a_buffer_is_refused_as_one() -> None:
    """Such as that of a loss which begins as a buffer of zero."""
    model = nn.Linear(2, 2)
    model.register_buffer("zero", torch.zeros(()))

    def step(x: Tensor) -> None:
        (model.get_buffer("zero").requires_grad_() + model(x).sum()).backward()

    with pytest.raises(Uncapturable, match="a buffer has to be a parameter"):
        capture(step, [model], [], (torch.ones(1, 2),))


def _somewhere(device: str) -> tuple[nn.Module, Tensor]:
    """A model and a batch on a device that this machine need not have."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        weight = nn.Parameter(torch.empty(4, 4, device=device))
        batch = torch.empty(2, 4, device=device)
    model = nn.Linear(4, 4, bias=False)
    model.weight = weight
    return model, batch


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            "cuda",
            "parameter 'weight' is on cuda:0, and outgrow trains on the CPU and on GPUs of CUDA that torch finds",
        ),
        ("meta", "parameter 'weight' is on meta and has no content; make it on the CPU, with outgrow.build"),
    ],
)
def test_models_that_are_not_on_the_cpu_are_refused(device: str, message: str) -> None:
    """The first tensor that lies elsewhere is named, with what to do; so is one of two devices."""
    model, batch = _somewhere(device)

    def step(x: Tensor) -> None:
        model(x).sum().backward()

    with pytest.raises(Uncapturable, match=re.escape(message)):
        capture(step, [model], [SGD(model.parameters(), 0.1)], (batch,))
    with pytest.raises(Uncapturable, match=re.escape(message)):
        capture(step, [nn.Linear(4, 4), model], [], (torch.ones(2, 4),))
    with pytest.raises(Uncapturable, match=r"an argument of shape \(2, 4\) is on"):
        capture(step, [nn.Linear(4, 4)], [], (batch,))


def test_tensors_that_the_step_makes_elsewhere_are_refused() -> None:
    """What the step moves to another device is not planned there."""
    model = nn.Linear(4, 4)
    with pytest.raises(Uncapturable, match="the step makes a tensor on meta"):
        capture(lambda x: model(x).to("meta"), [model], [], (torch.ones(2, 4),))


def test_the_state_of_a_gpus_generator_is_read_and_set_where_the_step_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As checkpointing does around a region that is run twice; nothing is set while the step is captured."""
    states: list[Tensor] = []
    monkeypatch.setattr(generator, "_read_cuda", lambda _index: torch.arange(16, dtype=torch.uint8))
    monkeypatch.setattr(generator, "_write_cuda", lambda state, index: states.append(state + index))

    def step(x: Tensor) -> Tensor:
        before = torch.cuda.get_rng_state(2)
        y = x + 1
        torch.cuda.set_rng_state(before, 2)
        return y * 2

    captured = capture(step, [], [], (torch.ones(4),))
    assert not states
    operators = [op.operator for op in captured.graph.ops]
    assert operators[0] == "outgrow.read_cuda_generator.default"
    assert operators.index("outgrow.write_cuda_generator.default") > 0
    program = lower(captured.graph)
    run = Run(program, None, {"batch.0": torch.ones(4).untyped_storage()}, {}, 1 << 20)
    execute(run)
    assert torch.equal(states[0], torch.arange(16, dtype=torch.uint8) + 2)


def test_tensors_without_a_plain_storage_are_refused() -> None:
    """Sparse gradients are named, with a way out."""
    model = nn.Embedding(10, 4, sparse=True)

    def step(x: Tensor) -> None:
        model(x).sum().backward()

    with pytest.raises(Uncapturable, match="sparse"):
        capture(step, [model], [], (torch.tensor([1, 2]),))


def test_a_sparse_gradient_that_was_left_is_refused_by_name() -> None:
    """When the step is compiled, or called; a call is right again once it is gone."""
    model, x = nn.Embedding(10, 4, sparse=True), torch.tensor([1, 2])

    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x).sum()

    compiled = outgrow.compile(step, model=model, memory_budget="4GiB")
    model(x).sum().backward()
    for attempt in (lambda: compiled(x), lambda: outgrow.compile(step, model=model, memory_budget="4GiB")):
        with pytest.raises(Uncapturable, match=r"the gradient of parameter 'weight' is a sparse tensor.*zero_grad"):
            attempt()
    model.zero_grad()
    assert torch.equal(compiled(x), step(x))


def test_writes_to_arguments_that_share_memory_are_refused() -> None:
    """The graph takes arguments for separate storages, so a write that two of them see is refused."""
    x = torch.zeros(4)

    def step(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y + 0

    capture(step, [], [], (x, torch.zeros(4)))
    with pytest.raises(Uncapturable, match="shares memory"):
        capture(step, [], [], (x, x[:]))


def test_what_has_no_shape_yet_is_refused() -> None:
    """A lazy layer; the remedy is to call the model."""
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(Uncapturable, match=r"parameter '0\.weight' has no shape before the first forward pass"):
        capture(model, [model], [], (torch.ones(2, 3),))


def test_what_torch_jit_has_compiled_is_refused() -> None:
    """A model or a layer, when the step is compiled; a layer that comes later, when it is called."""
    model = nn.Sequential(nn.Linear(4, 4))
    scripted = torch.jit.script(nn.Tanh())
    later = outgrow.compile(model.forward, model=model, memory_budget="4GiB")
    model.append(scripted)
    for attempt in (
        lambda: outgrow.compile(scripted.forward, model=scripted, memory_budget="4GiB"),
        lambda: outgrow.compile(model.forward, model=model, memory_budget="4GiB"),
        lambda: later(torch.ones(2, 4)),
    ):
        with pytest.raises(Uncapturable, match=r"a Tanh has been compiled by torch\.jit .* load_state_dict"):
            attempt()


def test_state_of_no_parameter_is_refused() -> None:
    """Under a name, as some optimizers keep it."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state["global"] = {"calls": torch.zeros(())}  # pyright: ignore[reportArgumentType]
    with pytest.raises(Uncapturable, match=r"state\['global'\]\['calls'\].* of no parameter"):
        capture(model, [model], [optimizer], (torch.ones(2, 2),))


def test_an_empty_batch_is_captured() -> None:
    """Torch cannot trace the gradient of its mean, whose kernel has nothing to do."""
    model = nn.Linear(2, 2)
    captured = capture(lambda x: nn.functional.mse_loss(model(x), x).backward(), [model], [], (torch.ones(0, 2),))
    assert "aten.mse_loss_backward.default" in [op.operator for op in captured.graph.ops]


class Taught(nn.Module):
    """Makes a copy of its layer when it is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.teacher = nn.Linear(4, 4), None

    def forward(self, x: Tensor) -> Tensor:
        if self.teacher is None:
            self.teacher = copy.deepcopy(self.layer)
        return self.layer(x) - self.teacher(x).detach()


def test_a_parameter_that_a_step_makes_is_refused_until_it_is_there() -> None:
    """The refusal says how it comes to be there."""
    model = Taught()
    with pytest.raises(Uncapturable, match=r"makes parameter 'teacher\.\w+'; .* calling the model once"):
        capture(model, [model], [], (torch.ones(2, 4),))
    model(torch.ones(2, 4))
    capture(model, [model], [], (torch.ones(2, 4),))


class Keeping(SGD):
    """Keeps something that is the state of no parameter, or a list in a group, and goes on by it."""

    def __init__(self, parameters: Iterable[nn.Parameter], kept: object) -> None:
        super().__init__(parameters, lr=0.1)
        self.kept = kept
        self.param_groups[0]["list"] = [1.0]

    def step(self, closure: None = None) -> None:
        if self.kept == "list":
            self.param_groups[0]["list"][0] += 1.0
        state: Any = self.state
        if self.kept != "list":
            state["k"] = state["k"].add_(1) if "k" in state and self.kept == "tensor" else self._next(state)
        super().step(closure)

    def _next(self, state: dict[Any, Any]) -> object:
        return torch.tensor([0]) if self.kept == "tensor" else state.get("k", 0) + 1


@pytest.mark.parametrize(("kept", "what"), [("tensor", r"state\['k'\]"), ("int", r"state\['k'\]"), ("list", "'list'")])
def test_what_an_optimizer_keeps_of_no_parameter_is_refused_where_it_changes(kept: str, what: str) -> None:
    """In its state under a word, and in a list of a parameter group."""
    model = nn.Linear(2, 2)
    optimizer = Keeping(model.parameters(), kept)

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    with pytest.raises(Uncapturable, match=f"the step changes .*{what}"):
        capture(step, [model], [optimizer], (torch.ones(1, 2),))
    step(torch.ones(1, 2))
    if kept == "tensor":  # which is there by now
        capture(step, [model], [optimizer], (torch.ones(1, 2),))
        return
    with pytest.raises(Uncapturable, match=f"the step changes .*{what}"):
        capture(step, [model], [optimizer], (torch.ones(1, 2),))


def test_tensors_in_a_tuple_of_a_group_are_told_apart() -> None:
    """They are constants of a capture."""
    model = nn.Linear(2, 2)
    optimizer = Adam(model.parameters(), betas=(torch.tensor(0.9), torch.tensor(0.99)), capturable=False)
    before = signature(test_tensors_in_a_tuple_of_a_group_are_told_apart, [model], [optimizer], (), {})
    optimizer.param_groups[0]["betas"] = (torch.tensor(0.5), torch.tensor(0.99))
    assert signature(test_tensors_in_a_tuple_of_a_group_are_told_apart, [model], [optimizer], (), {}) != before


def test_attributes_of_parameters_are_as_before() -> None:
    """A step that changes one is refused, since it would do so once."""
    model = nn.Linear(2, 2)
    weight: Any = model.weight
    weight.count = 0

    def step(x: Tensor) -> Tensor:
        weight.count += 1
        return model(x)

    with pytest.raises(Uncapturable, match="'count' of parameter 'weight'"):
        capture(step, [model], [], (torch.ones(1, 2),))
    assert weight.count == 0


def test_saving_in_a_step_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    """What it would save has no content."""
    model = nn.Linear(2, 2)

    def step(x: Tensor) -> Tensor:
        torch.save(model.state_dict(), tmp_path / "saved.pt")
        return model(x)

    with pytest.raises(Uncapturable, match="save after it"):
        capture(step, [model], [], (torch.ones(1, 2),))
    assert not any(tmp_path.iterdir())


def test_a_tensor_outside_that_begins_to_want_a_gradient_is_another() -> None:
    """Eager mode would leave one."""
    model, other = nn.Linear(2, 2), torch.ones(1, 2)
    captured = capture(lambda x: model(x) + other, [model], [], (torch.ones(1, 2),))
    (found,) = captured.found
    assert found.still_lies({})
    other.requires_grad_()
    assert not found.still_lies({})


def test_the_cache_of_autocast_is_part_of_a_signature() -> None:
    """Also where autocast is off around the step, which may switch it on."""
    before = signature(test_the_cache_of_autocast_is_part_of_a_signature, [], [], (), {})
    torch.set_autocast_cache_enabled(False)
    try:
        assert signature(test_the_cache_of_autocast_is_part_of_a_signature, [], [], (), {}) != before
    finally:
        torch.set_autocast_cache_enabled(True)


def test_the_fast_path_of_a_transformer_is_refused_under_autocast() -> None:
    """Its kernel casts what it multiplies."""
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()

    def step(x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu"):
            return layer(x)

    with pytest.raises(Uncapturable, match="_transformer_encoder_layer_fwd casts also"):
        capture(step, [layer], [], (torch.ones(1, 3, 8),))
