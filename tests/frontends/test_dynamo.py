"""A loop that cannot be captured whole trains by parts, with the bits of eager and within its budget."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, AdamW, Optimizer, RAdam
from torch.utils.checkpoint import checkpoint

from outgrow.errors import Infeasible, InvalidQuantity, OutOfTurn, Uncapturable
from outgrow.frontends import dynamo
from outgrow.frontends.parts import parts
from outgrow.frontends.parts.shared_budget import Shared, may_stay
from outgrow.frontends.platforms import on_cpu
from outgrow.frontends.preparing import warmup
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.preparing.settings import Settings
from outgrow.remarks import Remark
from outgrow.runtime.execute import Run
from outgrow.runtime.process import high_water_bytes, reset_high_water
from outgrow.units import MIB

WIDTH, ROWS, STEPS = 512, 2048, 4
TRIES, SLACK, AMPLE = 6, 8 << 20, 1 << 40
Model = Callable[[Tensor], Tensor]


def blocks(number: int) -> nn.Sequential:
    """Layers with batch norm, which counts, and dropout, which draws."""
    inner = [
        module
        for _ in range(number)
        for module in (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.1))
    ]
    return nn.Sequential(*inner)


class Plain(nn.Module):
    """One part."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = blocks(6), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Deciding(Plain):
    """A decision by contents between the halves: several parts, two of which have the same weights."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.body[:12](x)
        if x.mean() > 0:
            x = 2 * x
        torch._dynamo.graph_break()
        x = self.body[12:](x)
        torch._dynamo.graph_break()
        return self.head(self.body[12:](x) + x)


class Checkpointed(Plain):
    """Regions that are marked to be computed twice."""

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.body[:12], x, use_reentrant=False)
        return self.head(checkpoint(self.body[12:], x, use_reentrant=False))


class Reentrant(Plain):
    """The same as eager's older kind; what is given to the first region wants a gradient, or does not."""

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.body[:12], x, use_reentrant=True)
        return self.head(checkpoint(self.body[12:], x, use_reentrant=True))


class Choosing(Plain):
    """As many rows as the contents say go on."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        chosen = x[x[:, 0] > 0]
        return self.head(x) + chosen.mean()


def batch(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Rows and classes."""
    return torch.randn(rows, WIDTH), torch.randint(0, 10, (rows,))


def plain(module: nn.Module, model: Model, optimizer: Optimizer, _step: int) -> list[float]:
    """What every tutorial does, with a norm that is looked at."""
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    optimizer.zero_grad()
    return [loss.item(), norm.item()]


def accumulating(module: nn.Module, model: Model, optimizer: Optimizer, step: int) -> list[float]:
    """Two forward passes before one backward pass, the last batch short, and an evaluation after each step."""
    losses = [F.cross_entropy(model(x), y) for x, y in (batch(ROWS // 2), batch(ROWS // 2 - 100 * (step == STEPS - 1)))]
    (losses[0] + losses[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    model(batch(64)[0])  # nobody wants its backward pass
    module.eval()
    with torch.no_grad():
        losses.append(model(batch(64)[0]).sum())
    module.train()
    return [loss.item() for loss in losses]


def closing(_module: nn.Module, model: Model, optimizer: Optimizer, _step: int) -> list[float]:
    """An optimizer that asks for the loss several times."""
    x, y = batch(256)

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    return [float(optimizer.step(closure))]


class ShortLBFGS(LBFGS):
    """LBFGS with a short memory."""

    def __init__(self, parameters: Iterator[Tensor]) -> None:
        super().__init__(parameters, lr=0.1, max_iter=3, history_size=2)


@dataclass
class Left:
    """What a training leaves."""

    losses: list[list[float]] = field(default_factory=list[list[float]])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    generator: Tensor = field(default_factory=torch.get_rng_state)


Loop = Callable[[nn.Module, Model, Optimizer, int], list[float]]


def left_by(
    kind: type[nn.Module],
    rule: Callable[[Iterator[nn.Parameter]], Optimizer],
    loop: Loop,
    compiled: Callable[[nn.Module], Model],
) -> Left:
    """Train from a known state and return what is left."""
    torch.manual_seed(0)
    module = kind()
    optimizer = rule(module.parameters())
    model = compiled(module)
    left = Left([loop(module, model, optimizer, step) for step in range(STEPS)])
    left.tensors = [tensor.detach().clone() for tensor in (*module.parameters(), *module.buffers())]
    left.generator = torch.get_rng_state()
    return left


@pytest.fixture
def compiled(
    disk_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    planned_parts: None,  # noqa: ARG001
) -> Iterator[Callable[..., Callable[[nn.Module], Model]]]:
    """Compile models under a budget, for a machine whose rates need no measuring and without known costs.

    Their parts run as planned.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
    monkeypatch.setattr(on_cpu, "this_machine", lambda _folder: described_machine("xeon-2core-disk"))

    def make(budget: int | str) -> Callable[[nn.Module], Model]:
        options = {"memory_budget": budget, "offload_dir": str(disk_folder)}
        return lambda module: torch.compile(module, backend=dynamo.backend, options=options)

    yield make
    dynamo.forget()


def identity(module: nn.Module) -> Model:
    return module


def check_bits_of_eager(
    train: Callable[[Callable[[nn.Module], Model]], nn.Module], compiled: Callable[[nn.Module], Model]
) -> None:
    """Train eagerly and by parts; gradients, buffers and generator have to be equal."""
    left: list[list[Tensor]] = []
    for way in (identity, compiled):
        torch.manual_seed(0)
        module = train(way)
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        left.append([*gradients, *module.buffers(), torch.get_rng_state()])
    expected, found = left
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("kind", "rule", "loop", "budget"),
    [
        (Plain, AdamW, plain, 130 * MIB),
        (Deciding, RAdam, plain, AMPLE),
        (Checkpointed, AdamW, plain, 130 * MIB),
        (Choosing, AdamW, plain, 150 * MIB),
        (Plain, AdamW, accumulating, AMPLE),
        (Plain, ShortLBFGS, closing, 160 * MIB),
    ],
    ids=["plain", "deciding", "checkpointed", "choosing", "accumulating", "closing"],
)
def test_parts_have_the_bits_of_eager(
    kind: type[nn.Module],
    rule: Callable[[Iterator[nn.Parameter]], Optimizer],
    loop: Loop,
    budget: int,
    compiled: Callable[[int], Callable[[nn.Module], Model]],
    waits: Callable[[Shared], int],
) -> None:
    """Losses, parameters, buffers and generator are those of the eager loop; the process keeps the budget."""
    expected = left_by(kind, rule, loop, identity)
    for _ in range(TRIES):
        dynamo.forget()
        gc.collect()
        reset_high_water()
        try:
            found = left_by(kind, rule, loop, compiled(budget))
            break
        except Infeasible as refusal:  # what a process holds besides depends on what ran before
            budget = refusal.floor_bytes + SLACK
    else:
        raise AssertionError("a floor that is named is one")
    high_water = high_water_bytes()
    assert found.losses == expected.losses
    assert all(map(torch.equal, found.tensors, expected.tensors))
    assert torch.equal(found.generator, expected.generator)
    (shared,) = dynamo.budgets()
    assert waits(shared) >= STEPS
    assert shared.platform.cache.known, "parts are planned by what runs have shown"
    # with several parts the process may take more than planned while Dynamo compiles in a heap that others used
    assert high_water - shared.baseline_bytes <= budget or budget == AMPLE


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_may_come_first(
    mode: Callable[[], Any], compiled: Callable[[int], Callable[[nn.Module], Model]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has warmed up nothing yet does so without gradients too."""
    monkeypatch.setattr(warmup, "_warm", set())
    module, (x, _) = Plain().eval(), batch()
    model = compiled(1 << 30)(module)
    with mode():
        assert torch.equal(model(x), module(x))
    assert model(x).requires_grad


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_a_reentrant_checkpoint_gives_gradients_where_eager_does(
    compiled: Callable[[int], Callable[[nn.Module], Model]],
) -> None:
    """Eager mode gives none to weights of a region whose inputs want none, which a part refuses to make up."""
    torch.manual_seed(0)
    module, (x, _) = Reentrant().eval(), batch(64)
    model = compiled(1 << 30)(module)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()), allow_unused=True)
    assert expected[0] is None
    with pytest.raises(Uncapturable, match=r"test_dynamo.py.* is given nothing whose gradient is wanted"):
        model(x)
    x.requires_grad_()
    module(x).sum().backward()
    expected = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    model(x).sum().backward()
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_a_checkpoint_around_parts_has_the_bits_of_eager(
    norm: Callable[[int], nn.Module], compiled: Callable[[int], Callable[[nn.Module], Model]]
) -> None:
    """It saves nothing of parts, runs them again where eager would see that, and captures each kind once."""

    def train(compiled: Callable[[nn.Module], Model]) -> nn.Module:
        module = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), norm(32), nn.Dropout(0.1)) for _ in range(3)])
        first, second, third = models = [*map(compiled, module)]
        living.extend(models)
        for _ in range(3):
            x = torch.randn(8, 32, requires_grad=True)
            y = checkpoint(lambda x: second(checkpoint(first, x, use_reentrant=False)).tanh(), x, use_reentrant=False)
            checkpoint(third, y, use_reentrant=False).square().mean().backward()
        return module

    living: list[Model] = []
    check_bits_of_eager(train, compiled(1 << 30))
    (report,) = dynamo.parts().budgets
    assert len(report.parts) == 2, "one kind of call is given a leaf, and the other one is not"


class Rated(nn.Module):
    """Rates that change from call to call: one is multiplied with, and of two others operators need the number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout, self.scale = nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(self.linear(x))) * self.scale


class RatedTwice(Rated):
    """Its forward pass runs again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.parametrize("kind", [Rated, RatedTwice])
@pytest.mark.parametrize(
    ("changed", "kinds"), [((), 1), (("scale",), 2), (("p",), 4), (("momentum", "scale"), 4)], ids=str
)
def test_floats_that_change_between_calls_have_the_bits_of_eager(
    changed: Sequence[str], kinds: int, kind: type[Rated], compiled: Callable[[int], Callable[[nn.Module], Model]]
) -> None:
    """Dynamo hands them over as tensors; a part is captured for each number only where it has to be."""

    def train(compiled: Callable[[nn.Module], Model]) -> nn.Module:
        module = kind()
        model = compiled(module)
        living.append(model)
        owners = {"scale": module, "p": module.dropout, "momentum": module.norm}
        for call in (1, 2, 3, 4):
            for name in changed:
                setattr(owners[name], name, 0.1 * call)
            model(torch.randn(8, 32)).square().mean().backward()
        return module

    living: list[Model] = []
    check_bits_of_eager(train, compiled(1 << 30))
    (report,) = dynamo.parts().budgets
    assert len(report.parts) == kinds


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_random_numbers_of_numpy_are_those_of_eager(compiled: Callable[[int], Callable[[nn.Module], Model]]) -> None:
    """And those of torch beside them."""

    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            mask = torch.from_numpy(np.random.rand(*x.shape) < 0.5)  # noqa: NPY002 - as models draw
            return F.dropout(x.masked_fill(mask, 0.0), 0.5)

    left: list[list[Tensor]] = []
    for make in (identity, compiled(AMPLE)):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - as models draw
        model = Masked(8, 8)
        run = make(model)
        left.append([run(torch.ones(4, 8)).detach() for _ in range(3)])
    assert all(map(torch.equal, *left))


def test_what_needs_a_content_in_a_part_is_not_told_to_plan_parts(
    compiled: Callable[[int], Callable[[nn.Module], Model]],
) -> None:
    """That is what it does already. Random numbers are nothing that inputs could be asked for."""

    class Finding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[torch.rand_like(x).gt(0.5).nonzero().squeeze(1)].sum()

    model, whole = compiled(1 << 30)(Finding()), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with whole, pytest.raises(Uncapturable, match="depends on the content") as refusal:
        model(torch.randn(4, requires_grad=True))
    assert "backend=" not in str(refusal.value)


def test_an_operator_of_functions_in_a_part_is_refused_by_its_name(
    compiled: Callable[[int], Callable[[nn.Module], Model]],
) -> None:
    """Dynamo keeps `torch.cond` as one call; the refusal also says where the part begins, and what a loop can write."""

    class Choosing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    model = compiled(1 << 30)(Choosing())
    with pytest.raises(Uncapturable, match=r"begins in forward, test_dynamo.py:\d+: .*cond, .*write an if"):
        model(torch.randn(4, requires_grad=True))


def test_a_budget_below_the_floor_is_refused(compiled: Callable[[int], Callable[[nn.Module], Model]]) -> None:
    """The floor is named, and the model stays usable."""
    module = Plain()
    with pytest.raises(Infeasible, match=r"below the floor.*may need more\."):
        compiled(4 * MIB)(module)(batch()[0]).sum().backward()
    module(batch()[0])


@pytest.mark.parametrize(("failing_pass", "count"), [("without gradients", 1), ("forward", 1), ("backward", 2)])
def test_a_part_that_fails_lets_go_of_what_it_held(
    failing_pass: str,
    count: int,
    compiled: Callable[[int], Callable[[nn.Module], Model]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass that ends in the middle leaves no run behind, also while the error is kept; the next has eager's bits.

    Of a backward pass whose gradient arrives otherwise than was captured, the run that waited has ended before.
    """
    torch.manual_seed(0)
    module, (x, _) = Plain().eval(), batch()
    abandoned: list[Run] = []
    abandon, advance = Run.abandon, Run.advance
    monkeypatch.setattr(Run, "abandon", lambda run: (abandoned.append(run), abandon(run)))

    def failing(run: Run, stop: int) -> None:
        advance(run, run.position + (stop - run.position) // 2)
        raise KeyboardInterrupt

    with torch.set_grad_enabled(failing_pass != "without gradients"):
        expected = module(x)
        model = compiled(1 << 30)(module)
        kept = model(x).sum() if failing_pass == "backward" else x
        with monkeypatch.context() as broken:
            broken.setattr(Run, "advance", failing)
            with pytest.raises(KeyboardInterrupt) as error:
                kept.backward() if failing_pass == "backward" else model(x)
        assert len(abandoned) == count, f"while {error.value!r} is kept"
        assert not any(run.storages for run in abandoned)
        assert torch.equal(model(x), expected)


def test_a_forward_pass_whose_backward_pass_nobody_wants_leaves_nothing(
    compiled: Callable[[int], Callable[[nn.Module], Model]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run ends with its results, as what eager keeps for a backward pass does."""
    begun: list[ref[Run]] = []
    start = Run.start
    monkeypatch.setattr(Run, "start", lambda run: (begun.append(ref(run)), start(run)))
    model, (x, _) = compiled(1 << 30)(Plain()), batch()
    for _ in range(3):
        result = model(x)
        assert result.requires_grad
        assert begun[-1]() is not None
        del result
        assert begun[-1]() is None


def test_kinds_of_inputs_are_forgotten_in_turn(
    compiled: Callable[[int], Callable[[nn.Module], Model]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that sees ever other shapes keeps plans for the last ones alone, and the bits of eager."""
    monkeypatch.setattr(parts, "MOST_KINDS", 2)
    found_parts: list[parts.Part] = []
    made = parts.Part.__init__

    def noted(part: parts.Part, *arguments: Any) -> None:
        found_parts.append(part)
        made(part, *arguments)

    monkeypatch.setattr(parts.Part, "__init__", noted)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = compiled(1 << 30)(module)
    for rows in (64, 65, 66, 64, 67, 64):
        x = torch.randn(rows, WIDTH)
        expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
        found = torch.autograd.grad(model(x).sum(), list(module.parameters()))
        assert all(map(torch.equal, found, expected))
    assert sum(len(part._ready) for part in found_parts) <= 2 * len(found_parts)


def test_a_second_backward_pass_is_refused(compiled: Callable[[str], Callable[[nn.Module], Model]]) -> None:
    """Nothing is kept for it."""
    loss = compiled("1GiB")(Plain())(batch()[0]).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(OutOfTurn, match="has run already"):
        loss.backward()


def test_an_input_that_changes_before_the_backward_pass_is_refused(
    compiled: Callable[[str], Callable[[nn.Module], Model]],
) -> None:
    """As eager refuses it: the gradients would be wrong."""
    module = Plain()
    loss = compiled("1GiB")(module)(batch()[0]).sum()
    with torch.no_grad():
        module.head.weight.mul_(2)
    with pytest.raises(OutOfTurn, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (None, TypeError, "memory_budget is needed"),
        ({"memory_budget": "1GiB", "memroy": 1}, TypeError, "given: memory_budget, memroy"),
        ({"memory_budget": "8 bananas"}, InvalidQuantity, "bananas"),
    ],
)
def test_options_are_checked(options: Any, kind: type[Exception], message: str) -> None:
    """What is missing or unknown is named at the first call, in an error of ours that nobody has wrapped."""
    model = torch.compile(nn.Linear(1, 1), backend=dynamo.backend, options=options)
    with pytest.raises(kind, match=message):
        model(torch.ones(1, 1))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_parts_are_reported_with_what_they_take(compiled: Callable[[int], Callable[[nn.Module], Model]]) -> None:
    """Where each begins, what it takes and leaves to others, and how much was taken in all; a dropped one is gone."""
    assert dynamo.parts().budgets == ()
    module = Deciding()
    model = compiled(AMPLE)(module)
    for rows in (ROWS, ROWS, 64):
        model(batch(rows)[0]).sum().backward()
    (found,) = dynamo.parts().budgets
    assert found.budget_bytes == AMPLE
    assert found.taken_bytes > 0
    assert {part.begins.partition(",")[0] for part in found.parts} == {"forward"}
    assert {part.begins.partition(", ")[2].partition(":")[0] for part in found.parts} == {"test_dynamo.py"}
    assert [part.runs for part in found.parts] == [2] * 4 + [1] * 4
    assert [(64, WIDTH) in part.shapes for part in found.parts] == [False] * 4 + [True] * 4
    assert all(part.ops > 0 and part.in_core.peak_bytes >= part.planned.peak_bytes > 0 for part in found.parts)
    assert str(found).splitlines()[0].startswith(f"{len(found.parts)} parts within 1.00 TiB on ")
    del model, module
    for shared in dynamo._SHARED.values():
        shared.plans.clear()
    assert dynamo.parts().budgets == ()
    dynamo.forget()
    assert dynamo.parts().budgets == ()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_parts_that_fit_beside_each_other_move_nothing(compiled: Callable[[int], Callable[[nn.Module], Model]]) -> None:
    """A first plan leaves most of the budget to others; once a run has waited, what other parts take is known."""
    torch.manual_seed(0)
    module, budget = Deciding(), 450 * MIB
    optimizer = AdamW(module.parameters())
    model = compiled(budget)(module)
    plain(module, model, optimizer, 0)
    (found,) = dynamo.parts().budgets
    assert any(part.bytes_swapped for part in found.parts)
    for step in range(1, 6):
        plain(module, model, optimizer, step)
    (found,) = dynamo.parts().budgets
    assert not any(part.bytes_swapped for part in found.parts)
    assert found.taken_bytes <= budget


def test_more_than_the_budget_between_calls_is_told_once(
    compiled: Callable[[int], Callable[[nn.Module], Model]],
) -> None:
    """No plan of a part can spare what the loop takes by itself, as an optimizer's update does."""
    model = compiled(64 * MIB)(nn.Linear(8, 8))
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
    torch.ones(128 * MIB // 4)
    with pytest.warns(Remark, match=r"between two calls of compiled parts, more than the budget of 64\.0 MiB"):
        model(torch.ones(4, 8)).sum().backward()
    torch.ones(128 * MIB // 4)
    model(torch.ones(4, 8)).sum().backward()


class Looping(nn.Module):
    """A break inside of a loop, on which Dynamo gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            torch._dynamo.graph_break()
            x = self.linear(x)
        return x


def test_modules_are_given_back_as_they_were(disk_folder: Path) -> None:
    """Also one that the user had compiled, and one that was taken twice, after a loop that never ended."""
    in_place = dynamo.InPlace(Settings.of(1 << 30, offload_dir=disk_folder))
    plain_one, compiled = nn.Linear(4, 4), nn.Linear(4, 4)
    compiled.compile(backend="eager")
    before = compiled._compiled_call_impl
    for module in (plain_one, compiled, compiled):
        in_place.compile(module)
    assert before is not compiled._compiled_call_impl
    in_place.release()
    assert plain_one._compiled_call_impl is None
    assert compiled._compiled_call_impl is before


def test_a_loop_takes_over_modules_of_one_that_never_ended(disk_folder: Path) -> None:
    """Trainers tell nobody of an exception. When the next one is done modules run as they did before both."""
    interrupted, next_one = (dynamo.InPlace(Settings.of(size << 30, offload_dir=disk_folder)) for size in (1, 2))
    plain_one, compiled = nn.Linear(4, 4), nn.Linear(4, 4)
    compiled.compile(backend="eager")
    before = compiled._compiled_call_impl
    for in_place in (interrupted, next_one):
        for module in (plain_one, compiled):
            in_place.compile(module)
    next_one.release()
    assert plain_one._compiled_call_impl is None
    assert compiled._compiled_call_impl is before


def test_a_loop_without_parts_is_told(disk_folder: Path) -> None:
    """Once, by the integrations; a loop with parts is not."""
    in_place = dynamo.InPlace(Settings.of(1 << 30, offload_dir=disk_folder))
    looping = Looping()
    in_place.compile(looping)
    looping(torch.ones(2, 4))
    with pytest.warns(UserWarning, match=r"breaks inside of a loop: .* below its children"):
        in_place.check()
    in_place.check()
    other, plain_one = dynamo.InPlace(Settings.of(1 << 30, offload_dir=disk_folder)), nn.Linear(4, 4)
    other.compile(plain_one)
    plain_one(torch.ones(2, 4))
    other.check()
    dynamo.forget()


def test_recurrent_modules_are_told_of_once(disk_folder: Path) -> None:
    """Dynamo leaves them to eager mode, unless it is told not to."""
    in_place = dynamo.InPlace(Settings.of(1 << 30, offload_dir=disk_folder))
    with pytest.warns(Remark, match=r"no nn\.LSTM, .*allow_rnn = True"):
        in_place.compile(nn.Sequential(nn.GRU(4, 4)))
    in_place.compile(nn.LSTM(4, 4))
    with torch._dynamo.config.patch(allow_rnn=True):
        dynamo.InPlace(Settings.of(1 << 30, offload_dir=disk_folder)).compile(nn.LSTM(4, 4))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_may_be_parts(
    kind: Callable[..., nn.RNNBase], compiled: Callable[[int], Callable[[nn.Module], Model]]
) -> None:
    """With `allow_rnn`, as Dynamo calls it, and with eager's bits."""

    def gradients(run: Callable[[nn.Module], Model]) -> list[Tensor]:
        torch.manual_seed(0)
        layer, x = kind(8, 16, num_layers=2, dropout=0.5, batch_first=True), torch.rand(4, 6, 8)
        loss = run(layer)(x)[0].square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(layer.parameters()))]

    with torch._dynamo.config.patch(allow_rnn=True):
        found = gradients(compiled(1 << 30))
    assert dynamo.parts().budgets
    assert all(map(torch.equal, found, gradients(identity)))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_loop_over_many_modules_has_a_part_for_each(disk_folder: Path) -> None:
    """However many there are: what Dynamo would leave out is not under the budget."""
    in_place = dynamo.InPlace(Settings.of(1 << 30, offload_dir=disk_folder))
    modules = [nn.Linear(4 + at, 5 + at) for at in range(12)]
    for module in modules:
        in_place.compile(module)
    found = torch.ones(2, 4)
    for module in modules:
        found = module(found)
    (shown,) = dynamo.parts().budgets
    assert len(shown.parts) == len(modules)
    in_place.release()
    dynamo.forget()


@pytest.mark.filterwarnings("ignore:A part of the model .* has been captured and planned")
def test_a_model_has_as_many_kinds_of_calls_as_plans(compiled: Callable[[int], Callable[[nn.Module], Model]]) -> None:
    """Layers that are thawed one after the other make a kind each, whether Dynamo sees that, or the part alone."""
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12))).requires_grad_(requires_grad=False)
    model = compiled(1 << 30)(module)
    for layer in module:
        layer.requires_grad_()
        model(torch.ones(2, 8)).sum().backward()
    (shown,) = dynamo.parts().budgets
    assert len(shown.parts) == len(module)


def test_a_plan_stays_only_if_the_loop_leaves_it_room(compiled: Callable[[int], Callable[[nn.Module], Model]]) -> None:
    """What the loop makes of the results of a part, between the two passes, is there beside what the part holds."""
    torch.manual_seed(0)
    budget = 1 << 30
    model = compiled(budget)(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    model(torch.randn(ROWS, WIDTH)).sum().backward()
    (shared,) = dynamo.budgets()
    (ready,) = shared.plans.values()
    ready.beside_bytes = budget // 2
    assert may_stay(shared, ready, 0)
    for beside_bytes in (budget, budget - MIB):
        ready.beside_bytes = beside_bytes
        assert not may_stay(shared, ready, 0)


class Inclined(nn.Module):
    """A gradient within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.func.grad(lambda x: self.first(x).tanh().sum())(x))


def test_a_model_that_takes_gradients_itself_has_the_bits_of_eager(
    compiled: Callable[[int], Callable[[nn.Module], Model]],
) -> None:
    """With tensors of its own about, which have no memory."""
    torch.manual_seed(0)
    module, x = Inclined(), torch.randn(4, 8)
    assert torch.equal(compiled(1 << 30)(module)(x), module(x))
