"""How do the tests run a job by plans, each with so much room between the floor and the peak in core?"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from outgrow.analysis.cost import costs_of
from outgrow.analysis.liveness import live_bytes
from outgrow.errors import Infeasible
from outgrow.frontends import calls
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.signature import Signature, signature
from outgrow.frontends.user.reach import configuration
from outgrow.frontends.user.reach.containers import open_containers
from outgrow.frontends.user.training.plain import NumberSlot, numbers_of
from outgrow.frontends.user.training.state import StateSlot, Training, state_tensors
from outgrow.ir.graph import Graph
from outgrow.plan import Budget
from outgrow.planning.order.lean import Orders
from outgrow.planning.planned import Planned
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import verified
from outgrow.runtime.heap import Heap
from outgrow.runtime.recording import Held
from outgrow.runtime.spill import Spill
from tests.frontends.features import Make
from tests.frontends.steps import Job

STEPS = 3
SHARES = (1.0, 0.5, 0.0)
"""Budgets, from the floor (0) to the peak in core (1)."""
AMPLE = 1 << 40
SMALL_BYTES = 512


@dataclass
class Left:
    """What a training leaves: leaves of what steps returned, state by slot, and the generator after each step.

    The others are of the end: rates and numbers of optimizers, and of which parameters gradients are asked for.
    """

    returned: list[object] = field(default_factory=list[object])
    structures: list[str] = field(default_factory=list[str])
    generators: list[Tensor] = field(default_factory=list[Tensor])
    state: dict[StateSlot, Tensor] = field(default_factory=dict[StateSlot, Tensor])
    rates: list[float] = field(default_factory=list[float])
    numbers: dict[NumberSlot, object] = field(default_factory=dict[NumberSlot, object])
    trained: list[bool] = field(default_factory=list[bool])


def left_by(make: Make, ran: Callable[[Job, tuple[object, ...]], object]) -> Left:
    """Play three batches of a job and return what is left."""
    torch.manual_seed(0)
    job, left = make(), Left()
    for seed in range(STEPS):
        torch.manual_seed(seed)
        returned = ran(job, job.batch())
        open_containers(returned)
        leaves, structure = pytree.tree_flatten(returned)
        left.returned += [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        left.structures.append(str(structure))
        left.generators.append(torch.get_rng_state())
    left.state = dict(state_tensors(Training(job.models, job.optimizers)))
    left.rates = [group["lr"] for optimizer in job.optimizers for group in optimizer.param_groups]
    left.numbers = numbers_of(Training(job.models, job.optimizers))
    left.trained = [parameter.requires_grad for model in job.models for parameter in model.parameters()]
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
    names += [slot for slot in expected.numbers if found.numbers.get(slot) != expected.numbers[slot]]
    names += [] if found.numbers.keys() == expected.numbers.keys() else ["numbers"]
    names += [] if found.trained == expected.trained else ["trained"]
    return names if found.rates == expected.rates else [*names, "rates"]


def _same(left: object, right: object) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype is right.dtype and torch.equal(left.detach(), right.detach())
    return left == right


@dataclass(frozen=True)
class Known:
    """A captured step, and what all plans of it share: the problem without a budget, and the orders of its ops."""

    captured: Captured
    ample: Problem
    orders: Orders

    @cached_property
    def peak_bytes(self) -> int:
        """What is live at once in core."""
        return max(live_bytes(self.captured.graph, self.ample.workspace))

    @cached_property
    def floor_bytes(self) -> int:
        """What the step needs, whatever is done."""
        try:
            return self.planned_within(1).plan.budget.capacity_bytes
        except Infeasible as refusal:
            return refusal.floor_bytes

    def planned_within(self, budget_bytes: int) -> Planned:
        """Return a plan of a budget."""
        return planned(replace(self.ample, budget=Budget(budget_bytes)), prove=False, orders=self.orders)


@dataclass
class Ready:
    """A captured call, its plan, what that makes of it, and what its first run held."""

    captured: Captured
    planned: Planned
    derived: Graph
    held: Held | None = None


@dataclass
class Within:
    """Runs each call of a job by a plan that takes a share of what there is between floor and peak.

    `joined` is what becomes of a captured step before it is planned. Of jobs that were made alike those that run later
    take what was `captured` of earlier ones, unless it is bound to things of one of them.
    """

    share: float
    spill: Spill
    joined: Callable[[Captured], Captured] = lambda captured: captured
    captured: dict[Hashable, list[Known]] = field(default_factory=dict[Hashable, list[Known]])
    ready: dict[Hashable, Ready] = field(default_factory=dict[Hashable, Ready])

    def __call__(self, job: Job, batch: tuple[object, ...]) -> object:
        """Capture and plan the call, unless an earlier one was alike, and run it: after the first time by number."""
        training = Training(job.models, job.optimizers)
        key = signature(job.step, job.models, job.optimizers, batch, {})
        ready = self.ready.get(key)
        if ready is None or not ready.captured.guards_hold(training):
            ready = self.ready[key] = ready_within(self._captured(key, job, batch), self.share)
        program, plan = lower(ready.derived, costs=ready.planned.costs), ready.planned.plan
        feed = calls.Feed(ready.captured.given(training, pytree.tree_leaves(batch)), program, training)
        self.spill.reserve(program.scratch_bytes, 0)
        capacity = plan.budget.capacity_bytes
        run = calls.made_ready(feed, self.spill, Heap(), capacity, observe=False)
        outcome = calls.carried_out(feed, run if ready.held is None else calls.repeating(feed, run, None))
        recording = outcome.recording
        assert recording.peak_bytes == recording.trace.peak_bytes <= plan.predicted.peak_bytes <= capacity
        assert ready.held is None or recording.held == ready.held
        ready.held = recording.held
        calls.put_results(feed, outcome)
        return calls.settle(feed, outcome)

    def _captured(self, key: Signature, job: Job, batch: tuple[object, ...]) -> Known:
        training = Training(job.models, job.optimizers)
        alike = self.captured.setdefault(_whichever(key[1:]), [])
        for known in alike:
            if known.captured.guards_hold(training):
                return known
        found = self.joined(capture(job.step, job.models, job.optimizers, batch))
        known = known_of(found)
        if not (found.found or found.schedulers or found.settled or found.overwritten or found.changed):
            alike.append(known)
        return known

    @property
    def is_rewritten(self) -> bool:
        """Whether some call needed a plan."""
        return any(not ready.planned.plan.is_empty for ready in self.ready.values())


def _whichever(part: Hashable) -> Hashable:
    """Return part of a signature that does not say which tensors it is of."""
    if isinstance(part, tuple):
        return tuple(map(_whichever, part))
    return None if isinstance(part, configuration._Which) else part


def known_of(captured: Captured) -> Known:
    """All but the smallest storages may be moved; none rests on the disk between steps."""
    graph, machine = captured.graph, described_machine("xeon-2core-disk")
    costs = costs_of(graph, machine.device, {})
    fixed = frozenset(name for name, storage in graph.storages.items() if storage.is_persistent)
    ample = Problem(graph, costs, machine, Budget(AMPLE), fixed=fixed, minimum_bytes=SMALL_BYTES)
    return Known(captured, ample, Orders(ample))


def ready_within(known: Known, share: float) -> Ready:
    """Plan a call for a budget that lies between the floor and the peak in core."""
    peak = known.peak_bytes
    floor = peak if share == 1.0 else known.floor_bytes
    found = known.planned_within(floor + int(share * (peak - floor)))
    graph = known.captured.graph
    return Ready(known.captured, found, verified(graph, found.plan, found.stages, known.ample.workspace).graph)
