"""Every feature of an ordinary step leaves the bits of eager: in core, in half of its memory, and near the floor."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import SGD, lr_scheduler

from outgrow.analysis.cost import Costs, costs_of
from outgrow.analysis.liveness import live_bytes
from outgrow.errors import Infeasible, Uncapturable
from outgrow.frontends import calls
from outgrow.frontends.capture import Captured, capture
from outgrow.frontends.containers import open_dataclasses
from outgrow.frontends.lower import lower
from outgrow.frontends.machines import described_machine
from outgrow.frontends.signature import signature
from outgrow.frontends.state import StateSlot, Training, state_tensors
from outgrow.ir.graph import Graph
from outgrow.plan import Budget
from outgrow.planning import search
from outgrow.planning.planner import Planned, planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import verified
from outgrow.runtime.execute import Progress
from outgrow.runtime.spill import Spill
from tests.frontends.features import Make, by, named
from tests.frontends.steps import Job

STEPS = 3
SHARES = (1.0, 0.5, 0.0)
"""Budgets, from the floor (0) to the peak in core (1)."""
AMPLE = 1 << 40
SMALL_BYTES = 512
SGD_RATE = 0.25
FLAT = {"evaluated"}
"""Without a backward pass nothing waits: the peak is the floor."""
TRIALS = 500


@dataclass
class Left:
    """What a training leaves: leaves of what steps returned, state by slot, and the generator after each step."""

    returned: list[object] = field(default_factory=list[object])
    structures: list[str] = field(default_factory=list[str])
    generators: list[Tensor] = field(default_factory=list[Tensor])
    state: dict[StateSlot, Tensor] = field(default_factory=dict[StateSlot, Tensor])
    rates: list[float] = field(default_factory=list[float])


def left_by(make: Make, ran: Callable[[Job, tuple[object, ...]], object]) -> Left:
    """Play three batches of a job and return what is left."""
    torch.manual_seed(0)
    job, left = make(), Left()
    for seed in range(STEPS):
        torch.manual_seed(seed)
        returned = ran(job, job.batch())
        open_dataclasses(returned)
        leaves, structure = pytree.tree_flatten(returned)
        left.returned += [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        left.structures.append(str(structure))
        left.generators.append(torch.get_rng_state())
    left.state = dict(state_tensors(Training(job.models, job.optimizers)))
    left.rates = [group["lr"] for optimizer in job.optimizers for group in optimizer.param_groups]
    return left


def eager(job: Job, batch: tuple[object, ...]) -> object:
    return job.step(*batch)


def differences(found: Left, expected: Left) -> list[object]:
    """What is not equal in every bit."""
    names: list[object] = [] if found.structures == expected.structures else ["structure"]
    pairs = zip(found.returned, expected.returned, strict=True)
    names += [f"returned {at}" for at, pair in enumerate(pairs) if not _same(*pair)]
    drawn = zip(found.generators, expected.generators, strict=True)
    names += [f"generator after step {at}" for at, pair in enumerate(drawn) if not torch.equal(*pair)]
    slots = dict.fromkeys((*found.state, *expected.state))
    names += [slot for slot in slots if not _same(found.state.get(slot), expected.state.get(slot))]
    return names if found.rates == expected.rates else [*names, "rates"]


def _same(left: object, right: object) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype is right.dtype and torch.equal(left.detach(), right.detach())
    return left == right


@dataclass
class Ready:
    """A captured call, its plan, and what that makes of it."""

    captured: Captured
    costs: Costs
    planned: Planned
    derived: Graph


@dataclass
class Within:
    """Runs each call of a job by a plan that takes a share of what there is between floor and peak."""

    share: float
    spill: Spill
    ready: dict[Hashable, Ready] = field(default_factory=dict[Hashable, Ready])

    def __call__(self, job: Job, batch: tuple[object, ...]) -> object:
        """Capture and plan the call, unless an earlier one was alike, and run it."""
        training = Training(job.models, job.optimizers)
        key = signature(job.step, job.models, job.optimizers, batch, {})
        ready = self.ready.get(key)
        if ready is None or not ready.captured.guards_hold(training):
            captured = capture(job.step, job.models, job.optimizers, batch)
            ready = self.ready[key] = Ready(captured, *_planned(captured.graph, self.share))
        program, plan = lower(ready.derived), ready.planned.plan
        call = calls.bind(ready.captured, program, training, batch, {})
        self.spill.reserve(program.scratch_bytes, 0)
        capacity = plan.budget.capacity_bytes
        run = calls.made_ready(call, ready.costs, self.spill, capacity, Progress(), observe=False)
        outcome = calls.carried_out(call, run)
        assert outcome.trace.peak_bytes <= plan.predicted.peak_bytes <= capacity
        return calls.settle(call, outcome)

    @property
    def is_rewritten(self) -> bool:
        """Whether some call needed a plan."""
        return any(not ready.planned.plan.is_empty for ready in self.ready.values())


def _planned(graph: Graph, share: float) -> tuple[Costs, Planned, Graph]:
    """Costs, a plan whose budget lies between the floor and the peak in core, and what it makes of the graph.

    All but the smallest storages may be moved; none rests on the disk between steps.
    """
    machine = described_machine("xeon-2core-disk")
    costs = costs_of(graph, machine.device, {})
    fixed = frozenset(name for name, storage in graph.storages.items() if storage.is_persistent)
    ample = Problem(graph, costs, machine, Budget(AMPLE), fixed=fixed, minimum_bytes=SMALL_BYTES)
    peak = max(live_bytes(graph, ample.workspace))
    try:
        floor = planned(replace(ample, budget=Budget(1)), prove=False).plan.budget.capacity_bytes
    except Infeasible as refusal:
        floor = refusal.floor_bytes
    problem = replace(ample, budget=Budget(floor + int(share * (peak - floor))))
    found = planned(problem, prove=False)
    return costs, found, verified(graph, found.plan, found.stages, problem.workspace).graph


@pytest.fixture
def spill(disk_folder: Path) -> Iterator[Spill]:
    """A spill file."""
    spill = Spill(disk_folder)
    yield spill
    spill.close()


@pytest.mark.parametrize(("name", "make"), list(named()), ids=[name for name, _ in named()])
def test_a_feature_has_the_bits_of_eager_at_every_budget(
    name: str, make: Make, spill: Spill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What steps return, state, rates and generator after three batches."""
    monkeypatch.setattr(search, "_MOST_TRIALS", TRIALS)
    expected = left_by(make, eager)
    for share in SHARES:
        within = Within(share, spill)
        assert differences(left_by(make, within), expected) == [], (name, share)
        assert within.is_rewritten == (share < 1.0 and name not in FLAT), (name, share)


def _seeded(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    torch.manual_seed(3)
    return torch.randn_like(x)


def _own_generator(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator())


def _compiled(job: Job, x: Tensor, _y: Tensor) -> object:
    return torch.compile(job.models[0], backend="eager")(x)


def _rate_by_hand(job: Job, _x: Tensor, _y: Tensor) -> None:
    job.optimizers[0].param_groups[0]["lr"] *= 0.5


def _scheduled_before(job: Job, x: Tensor, y: Tensor) -> object:
    lr_scheduler.StepLR(job.optimizers[0], 1).step()
    return job.step(x, y)


def _scheduled_by_number(job: Job, _x: Tensor, _y: Tensor) -> None:
    lr_scheduler.CosineAnnealingWarmRestarts(job.optimizers[0], 3).step(3)


def _opaque(_job: Job, x: Tensor, _y: Tensor) -> object:
    return SimpleNamespace(scores=x + 1)


def _positive(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    return x[x > 0]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_seeded, "seeds torch's generator"),
        (_own_generator, "a Generator.*leave the generator out"),
        (_compiled, r"test_features.py:\d+.*_orig_mod"),
        (_rate_by_hand, "'lr'.*scheduler.step"),
        (_scheduled_before, "call the scheduler after the last step of its optimizer"),
        (_scheduled_by_number, "an argument, which would be the same in every call"),
        (_opaque, "a SimpleNamespace that holds tensors"),
        (_positive, r"test_features.py:\d+.*depends on the content"),
    ],
)
def test_what_a_capture_could_not_repeat_is_refused(step: Callable[..., object], message: str) -> None:
    """The message names the thing or the line, and a remedy; the generator is as it was."""
    job = by(partial(SGD, lr=SGD_RATE))()
    before = torch.get_rng_state()
    with pytest.raises(Uncapturable, match=message):
        capture(partial(step, job), job.models, job.optimizers, _two())
    assert torch.equal(torch.get_rng_state(), before)
    assert job.optimizers[0].param_groups[0]["lr"] == SGD_RATE


def _two() -> tuple[Tensor, Tensor]:
    return torch.ones(200, 8), torch.zeros(200, dtype=torch.long)


def test_a_step_may_look_at_what_is_made_of_literals_alone() -> None:
    """A mask of literals can be looked at, until something else is written into it."""

    def step(x: Tensor, *, spoil: bool) -> Tensor:
        mask = torch.ones(3, 3).tril()
        view = mask[0]
        if spoil:
            view.mul_(x)
        return x + 1 if bool((mask == torch.ones_like(x).expand(3, 3).tril()).all()) else x

    model = nn.Linear(1, 1)
    x = torch.full((3,), 2.0)
    assert [op.operator for op in capture(step, (model,), (), (x,), {"spoil": False}).graph.ops] == ["aten.add.Tensor"]
    with pytest.raises(Uncapturable, match="needs the content"):
        capture(step, (model,), (), (x,), {"spoil": True})
