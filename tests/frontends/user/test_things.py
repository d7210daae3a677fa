"""What a step uses as a whole, calls, or closes over is that of the call, also where it changed after the capture."""

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F
from torch.optim import SGD

import outgrow
from outgrow.errors import Uncapturable
from outgrow.frontends import within_budget
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.reach.reach import reached

CALLS = 4
Case = tuple[Callable[[Tensor], Tensor], Callable[[int], None]]
"""What is done with the model's result, and what happens before each call."""


def weights(use: Callable[[Any, Tensor], Tensor], made: Callable[[], Any]) -> Callable[["Job"], Case]:
    """A container with weights, of which the first is another one in each call."""

    def case(_job: "Job") -> Case:
        container = made()

        def before(at: int) -> None:
            container["a" if isinstance(container, dict) else 0] = 1.0 + at

        return lambda loss: use(container, loss), before

    return case


def exchanged(first: Any, second: Any, use: Callable[[Any, Tensor], Tensor]) -> Callable[["Job"], Case]:
    """Something that is another one from the third call on."""

    def case(_job: "Job") -> Case:
        holder = SimpleNamespace(it=first)

        def before(at: int) -> None:
            holder.it = first if at < 2 else second

        return lambda loss: use(holder.it, loss), before

    return case


class Job:
    """A model, and an optimizer of the user's own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.optimizer = Clipped(self.model.parameters(), lr=0.1)


class Clipped(SGD):
    """Calls a helper of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.clip: Any = SimpleNamespace()
        self.clip = Clip()

    def step(self, closure: Any = None) -> Any:
        self.clip(self.param_groups)
        return super().step(closure)


class Clip:
    """Scales gradients."""

    scale = 1.0

    def __call__(self, groups: list[dict[str, Any]]) -> None:
        for group in groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.scale)


class Entries:
    """A container of the user's own."""

    def __init__(self) -> None:
        self.weight = 1.0

    def __getitem__(self, _name: str) -> float:
        return self.weight


class Straight(torch.autograd.Function):
    """Scales gradients by an attribute of the class."""

    scale = 1.0

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * Straight.scale


def of_a_hook(job: Job) -> Case:
    noise = SimpleNamespace(scale=1.0)
    job.model[0].register_forward_hook(lambda _module, _args, result: result * noise.scale)

    def before(at: int) -> None:
        noise.scale = 1.0 / (1 + at)

    return lambda loss: loss, before


def of_a_gradient_hook(job: Job) -> Case:
    noise = SimpleNamespace(scale=1.0)
    parameter = next(job.model.parameters())

    def scale(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(noise.scale)

    parameter.register_post_accumulate_grad_hook(scale)

    def before(at: int) -> None:
        noise.scale = 1.0 / (1 + at)

    return lambda loss: loss, before


def of_a_pass(_job: Job) -> Case:
    def before(at: int) -> None:
        Straight.scale = 1.0 + at

    return lambda loss: cast("Tensor", Straight.apply(loss)), before


def of_an_optimizer(job: Job) -> Case:
    def before(at: int) -> None:
        job.optimizer.clip.scale = 1.0 / (1 + at)

    return lambda loss: loss, before


def of_an_object(read: Callable[[Any], float]) -> Callable[[Job], Case]:
    def case(_job: Job) -> Case:
        holder = Entries()

        def before(at: int) -> None:
            holder.weight = 1.0 + at

        return lambda loss: loss * read(holder), before

    return case


def of_functions_in_a_list(_job: Job) -> Case:
    scale = SimpleNamespace(it=1.0)
    functions = [lambda loss: loss * scale.it]

    def before(at: int) -> None:
        scale.it = 1.0 + at

    def use(loss: Tensor) -> Tensor:
        for function in functions:
            loss = function(loss)
        return loss

    return use, before


def of_a_teacher(change: Callable[[nn.Module, int], Any]) -> Callable[[Job], Case]:
    def case(_job: Job) -> Case:
        teacher = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.5), nn.Linear(3, 1)).requires_grad_(requires_grad=False)
        teacher.eval()
        return lambda loss: loss * teacher(torch.ones(1)).square().sum(), partial(change, teacher)

    return case


def of_a_tensor(change: Callable[[Tensor, int], Any]) -> Callable[[Job], Case]:
    def case(_job: Job) -> Case:
        weight = torch.arange(1.0, 5.0)
        return lambda loss: loss * weight.float().sum(), partial(change, weight)

    return case


def set_data(tensor: Tensor, data: Tensor) -> None:
    tensor.data = data


def exchange_weight(teacher: nn.Module, at: int) -> None:
    teacher[0].weight = nn.Parameter(torch.full((3, 1), 1.0 + at), requires_grad=False)  # type: ignore[index, operator]


CASES: dict[str, Callable[[Job], Case]] = {
    "list by an index": weights(lambda w, loss: loss * w[0], lambda: [1.0, 2.0]),
    "length and sum": weights(lambda w, loss: loss * sum(w) / len(w), lambda: [1.0, 2.0]),
    "deque": weights(lambda w, loss: loss * sum(w), lambda: deque([1.0, 2.0])),
    "array": weights(lambda w, loss: loss * float(w[0]), lambda: np.ones(3)),
    "dictionary in a loop": weights(lambda w, loss: sum((loss * v for v in w.values()), loss), lambda: {"a": 1.0}),
    "dictionary by get": weights(lambda w, loss: loss * w.get("a"), lambda: {"a": 1.0}),
    "dictionary by a variable": weights(lambda w, loss: sum((loss * w[k] for k in "ab"), loss), lambda: {"b": 1.0}),
    "keywords": weights(lambda w, loss: partial(lambda loss, a: loss * a, loss)(**w), lambda: {"a": 1.0}),
    "function": exchanged(torch.sin, torch.cos, lambda it, loss: it(loss)),
    "tensor": exchanged(torch.ones(1), torch.full((1,), 3.0), lambda it, loss: (loss * it).sum()),
    "module": exchanged(nn.Softplus(), nn.ELU(), lambda it, loss: it(loss)),
    "object by getattr": of_an_object(lambda holder: getattr(holder, "wei" + "ght")),
    "object by an operator": of_an_object(lambda holder: holder["a"]),
    "functions in a list": of_functions_in_a_list,
    "hook": of_a_hook,
    "gradient hook": of_a_gradient_hook,
    "pass of a function": of_a_pass,
    "optimizer": of_an_optimizer,
    "teacher in training": of_a_teacher(lambda teacher, at: teacher.train(at % 2 == 1)),
    "weights of a teacher": of_a_teacher(exchange_weight),
    "a tensor's type": of_a_tensor(lambda w, at: set_data(w, w.data.to(torch.float64 if at == 3 else torch.float32))),
    "a tensor's size": of_a_tensor(lambda w, at: set_data(w, torch.ones(4 if at < 3 else 1))),
    "a tensor's place": of_a_tensor(lambda w, at: set_data(w, torch.arange(8.0)[at % 2 : at % 2 + 4])),
}


def series(case: Callable[[Job], Case], *, planned: bool) -> list[Tensor]:
    """What the calls return, and the parameters in the end."""
    job = Job()
    use, before = case(job)

    def step(x: Tensor) -> Tensor:
        job.optimizer.zero_grad()
        loss = use(job.model(x).square().mean())
        loss.backward()
        job.optimizer.step()
        return loss.detach()

    compiled = outgrow.compile(step, model=job.model, optimizer=job.optimizer, memory_budget="4GiB")
    found: list[Tensor] = []
    for at in range(CALLS):
        before(at)
        torch.manual_seed(at)
        found.append((compiled if planned else step)(torch.ones(2, 4)))
    return [*found, *(parameter.detach() for parameter in job.model.parameters())]


@pytest.mark.filterwarnings("ignore:.*captured")
@pytest.mark.parametrize("name", CASES)
def test_what_a_step_finds_is_that_of_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what eager does, while it changes between the calls."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    found, expected = series(CASES[name], planned=True), series(CASES[name], planned=False)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), name
    assert len({float(item) for item in expected[:CALLS]}) > 1


@pytest.mark.filterwarnings("ignore:.*captured")
def test_a_container_that_a_step_fills_is_filled_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as eager does, and what is computed of it is that of the call."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)

    def counting(calls: list[int]) -> Callable[[Job], Case]:
        def use(loss: Tensor) -> Tensor:
            calls.append(1)
            return loss * len(calls)

        return lambda _job: (use, lambda _at: None)

    planned: list[int] = []
    eager: list[int] = []
    found, expected = series(counting(planned), planned=True), series(counting(eager), planned=False)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert planned == eager


@pytest.mark.filterwarnings("ignore:.*captured")
def test_a_large_container_that_a_step_reads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loop writes into it between the calls stays there, also where no step looks; nothing is remarked."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    table, row, known = dict.fromkeys(range(1000), 1.0), [1.0] * 1000, set(range(1000))

    def reading(_job: Job) -> Case:
        def change(at: int) -> None:
            table[7] = row[3] = float(at)

        return lambda loss: loss * table[0] * row[0] * len(known), change

    series(reading, planned=True)
    last = table[7], row[3]
    series(reading, planned=False)
    assert last == (table[7], row[3])
    assert last[0] > 1.0


@pytest.mark.filterwarnings("error:.*captured")
def test_a_large_array_that_a_step_reads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loop writes into it between the calls stays there, also where no step looks; nothing is remarked."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    counts, marks = np.zeros(4096), bytearray(1 << 15)

    def reading(_job: Job) -> Case:
        def change(_at: int) -> None:
            counts[7] += 1
            marks[5] += 1

        return lambda loss: loss * len(counts) * len(marks), change

    series(reading, planned=True)
    assert (counts[7], marks[5]) == (CALLS, CALLS)


@pytest.mark.filterwarnings("ignore:.*captured")
def test_what_a_step_counts_in_a_large_container_goes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the descriptions do not look, in an attribute or outside."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)

    def counting(outside: list[int], inside: Any) -> Callable[[Job], Case]:
        def case(job: Job) -> Case:
            job.model.seen = inside
            model: Any = job.model

            def use(loss: Tensor) -> Tensor:
                outside[7] += 1
                model.seen[7] += 1
                return loss * outside[7] * float(model.seen[7])

            return use, lambda _at: None

        return case

    for make in (lambda: [0] * 1000, lambda: np.zeros(4096)):
        planned, eager = ([0] * 1000, make()), ([0] * 1000, make())
        found, expected = series(counting(*planned), planned=True), series(counting(*eager), planned=False)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert planned[0][7] == planned[1][7] == eager[0][7] == CALLS


@pytest.mark.filterwarnings("ignore:.*captured")
def test_what_a_step_does_to_a_large_container_is_all_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop writes other entries between the calls, where no step looks, and these stay."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)

    def writing(filled: list[Any]) -> Callable[[Job], Case]:
        table, row, known, counts = filled

        def use(loss: Tensor) -> Tensor:
            table[7] = row[7] = counts[7] = loss.shape.numel() / 4
            known.add("new")
            return loss * len(table) * len(row) * len(known) * len(counts)

        def change(at: int) -> None:
            table[7] = row[7] = counts[7] = 0.0
            table[at + 8] = row[at + 8] = counts[at + 8] = at
            known.symmetric_difference_update({"new", f"word {at}"} & known)
            known.add(f"other {at}")

        return lambda _job: (use, change)

    planned, eager = (
        [dict.fromkeys(range(1000), 1.0), [1.0] * 1000, {f"word {at}" for at in range(300)}, np.zeros(4096)]
        for _ in range(2)
    )
    series(writing(planned), planned=True)
    series(writing(eager), planned=False)
    assert planned[:3] == eager[:3]
    assert np.array_equal(planned[3], eager[3])


def test_only_what_is_used_as_a_whole_counts_as_a_whole() -> None:
    """Another entry of a dictionary of which a word is read may be anything."""
    table: dict[str, float] = {"rate": 1.0, "step": 0.0}

    def by_word(x: Tensor) -> Tensor:
        return x * table["rate"]

    def by_length(x: Tensor) -> Tensor:
        return x * len(table)

    one, all_of_it = Outside.of(reached(by_word)), Outside.of(reached(by_length))
    table["step"] = 1.0
    assert one.still_hold()
    assert not all_of_it.still_hold()


def test_how_a_scaler_is_set_is_part_of_a_step() -> None:
    """Its numbers are in the graph."""
    parameter = nn.Parameter(torch.ones(2))
    module = nn.ParameterList([parameter])
    optimizer, scaler = SGD([parameter], lr=0.1, fused=True), GradScaler("cpu", init_scale=4.0)

    def step() -> None:
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    captured = capture(step, [module], [optimizer])
    assert captured.outside.still_hold()
    scaler.set_growth_factor(3.0)
    assert not captured.outside.still_hold()


def test_the_number_in_a_tensor_that_nothing_else_uses_is_read() -> None:
    """In every call anew, as the scale of a gradient scaler is."""
    model = nn.Linear(2, 1)
    number = torch.tensor(2.0)
    compiled = outgrow.compile(lambda x: model(x).sum() * number.item(), model=model, memory_budget="1TiB")
    captured = capture(lambda x: model(x).sum() * number.item(), [model], [], (torch.ones(1, 2),))
    assert any("_local_scalar_dense" in op.operator for op in captured.graph.ops)
    number.fill_(3.0)
    assert torch.equal(compiled(torch.ones(1, 2)), F.linear(torch.ones(1, 2), model.weight, model.bias).sum() * 3.0)


def test_an_iterator_in_a_list_is_refused() -> None:
    """It would give the same in every call."""
    batches = [iter([torch.ones(2)])]
    with pytest.raises(Uncapturable, match="takes from `batches`"):
        capture(lambda x: x + next(batches[0]), [], [], (torch.ones(2),))


class Loop:
    """A loop that counts and writes down around its step, and in it."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)
        self.ema: nn.Module | None = None
        self.history: list[float] = [0.0]
        self.meters: dict[str, float] = {}
        self.table = {"clip": 1.0, "step": 0.0}
        self.count, self.rows = 0, list[float]()

    def step(self, x: Tensor) -> Tensor:
        if getattr(self, "ema", None) is not None and self.history:
            x = x * 2
        self.note("seen", 1.0)
        self.rows.append(1.0)
        scale = self.table.get("clip", 1.0) * (2.0 if "momentum" in self.table else 1.0)
        return self.model(x).sum() * scale

    def note(self, name: str, value: float) -> None:
        self.meters[name] = value


def counted(loop: Loop) -> None:
    loop.count += 1


@pytest.mark.parametrize(
    "change",
    [
        counted,
        lambda loop: loop.history.append(1.0),
        lambda loop: loop.meters.update(loss=1.0),
        lambda loop: loop.table.update(step=1.0),
        lambda loop: loop.rows.append(2.0),
    ],
    ids=["a count", "a history", "meters", "another entry", "rows"],
)
def test_what_a_loop_counts_and_writes_down_makes_no_other_step(change: Callable[[Loop], None]) -> None:
    """Where the step asks for one word, or only writes; else every call would be captured."""
    loop = Loop()
    captured = capture(loop.step, [loop.model], [], (torch.ones(1, 2),))
    assert captured.outside.other() is None
    change(loop)
    assert captured.outside.other() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda loop: setattr(loop, "ema", nn.Linear(1, 1)),
        lambda loop: loop.history.clear(),
        lambda loop: loop.table.update(clip=2.0),
        lambda loop: loop.table.update(momentum=2.0),
    ],
    ids=["an attribute", "emptied", "an entry", "an entry more"],
)
def test_what_a_step_asks_for_makes_another_step(change: Callable[[Loop], None]) -> None:
    """The same, for what it does look at."""
    loop = Loop()
    captured = capture(loop.step, [loop.model], [], (torch.ones(1, 2),))
    change(loop)
    assert captured.outside.other() is not None


class Phase:
    """What a training is in."""


class Asked:
    """What a step asks about."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(distilled=nn.Linear(2, 2))
        self.words, self.flags, self.pair = ["mse"], {"mse"}, ("mse",)
        self.phase: object = Phase()


@pytest.mark.parametrize(
    ("ask", "change"),
    [
        (lambda asked: "kl" in asked.words, lambda asked: asked.words.append("kl")),
        (lambda asked: "kl" in asked.flags, lambda asked: asked.flags.add("kl")),
        (lambda asked: "kl" not in asked.pair, lambda asked: setattr(asked, "pair", ("kl",))),
        (lambda asked: hasattr(asked.config, "distilled"), lambda asked: delattr(asked.config, "distilled")),
        (lambda asked: isinstance(asked.phase, Phase), lambda asked: setattr(asked, "phase", object())),
    ],
    ids=["a list", "a set", "a tuple", "an attribute", "a kind"],
)
def test_what_is_asked_of_containers_and_kinds_makes_another_step(
    ask: Callable[[Asked], bool], change: Callable[[Asked], None]
) -> None:
    """A word that is looked for, an attribute that may be missing, and of which type something is."""
    model, asked = nn.Linear(2, 2), Asked()

    def step(x: Tensor) -> Tensor:
        return model(x).sum() * (2.0 if ask(asked) else 1.0)

    captured = capture(step, [model], [], (torch.ones(1, 2),))
    assert captured.outside.other() is None
    change(asked)
    assert captured.outside.other() is not None


def test_a_teacher_that_a_step_sets_on_its_way_is_as_it_was_before() -> None:
    """It is compared before the step begins."""
    teacher = nn.Sequential(nn.Linear(2, 2), nn.Dropout())

    def step(x: Tensor) -> Tensor:
        teacher.eval()
        found = teacher(x)
        teacher.train()
        return found

    assert capture(step, [], [], (torch.ones(1, 2),)).outside.other() is None


def test_modules_that_a_step_makes_for_itself_are_gone() -> None:
    """A container of others as well."""
    capture(lambda x: nn.Sequential(nn.Linear(2, 2))(x) + 1, [], [], (torch.ones(1, 2),))


def test_what_a_step_exchanges_alternates() -> None:
    """After the capture it is as before; after each call, as the step leaves it."""
    pair = SimpleNamespace(one=torch.ones(2), other=torch.zeros(2), lists=([1.0], [2.0]), active=None)
    pair.active = pair.lists[0]

    def step(x: Tensor) -> Tensor:
        pair.one, pair.other = pair.other, pair.one
        x = x * sum(pair.active)
        pair.active = pair.lists[1]
        return x + pair.one

    before = dict(vars(pair))
    captured = capture(step, [], [], (torch.ones(2),))
    assert all(vars(pair)[name] is value for name, value in before.items())
    assert pair.lists == ([1.0], [2.0])
    for item in captured.changed:
        item.leave()
    assert (pair.one is before["other"], pair.other is before["one"], pair.active is pair.lists[1]) == (True,) * 3
    assert captured.outside.other() is not None


def test_what_is_described_may_be_anything() -> None:
    """Tensors as keys, lists that hold themselves, and many entries, of which some are looked at."""
    velocity = {torch.ones(1): 1.0, torch.zeros(1): 2.0}
    endless: list[object] = []
    endless.append(endless)
    many = [1.0] * 1000
    outside = Outside.of(reached(lambda x: x * len(velocity) * len(endless) * sum(many)))
    assert outside.other() is None
    velocity.pop(next(iter(velocity)))
    assert outside.other() == "velocity"


def test_a_callable_object_that_is_exchanged_is_another_one() -> None:
    """Of another class; and a function that is found in a dictionary of a global variable is the one that is called."""
    holder = SimpleNamespace(it=Entries(), table={"first": torch.sin})
    outside = Outside.of(reached(lambda x: holder.it(holder.table["first"](x))))
    holder.table["first"] = torch.cos
    assert outside.other() is not None
    holder.table["first"] = torch.sin
    assert outside.other() is None
    holder.it = Clip()
    assert outside.other() is not None
