"""How do parts of a loop share one budget? Each is planned so that it leaves room for others.

When a part is planned, all that the process holds besides the part's inputs is overhead, also what other parts keep for
their backward passes. Beyond that, the first plan leaves most of the rest to others (`_SHARES`); the second leaves them
what they, other parts included, were seen to take, once a run has waited while nothing was planned:

    on a CPU      while the part waits: memory that it does not hold then serves whoever wants it. It is the workspace
                  of the hole. What is there when the part goes on, such as gradients of other weights, is overhead too
    on a device   at all times: the arena of a part is its own for as long as it waits, and for the next step as well

What others take anew, such as optimizer state in the first step, is seen once it is there; parts make room for it then.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from weakref import WeakSet, WeakValueDictionary, finalize

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from outgrow.analysis.cost import Cost, cost_key
from outgrow.analysis.timeline import Lane, Trace, memory_over_time
from outgrow.errors import Infeasible
from outgrow.frontends.parts.aliases import ViewOf
from outgrow.frontends.parts.arrivals import Arrival, telling
from outgrow.frontends.parts.between import Between, between
from outgrow.frontends.parts.casting import NO_CASTING, Casting
from outgrow.frontends.parts.casts import Casts, cast_inputs
from outgrow.frontends.parts.joint import Origin, hole_of, open_results
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.preparing.rehearsal import chooses
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.tracing.captured import Captured, Given
from outgrow.frontends.tracing.signature import Seen, glance_at_inputs
from outgrow.frontends.user.training.state import Training
from outgrow.frontends.within_budget import Demand, fitted
from outgrow.ir.machine import Machine
from outgrow.planning.planned import Planned
from outgrow.planning.problem import silent
from outgrow.remarks import remark
from outgrow.runtime.program import Call, Program, Result
from outgrow.simulation import replay
from outgrow.units import format_bytes

_SHARES = (0.9, 0.75, 0.5, 0.25, 0.0)
"""Shares of what is left that a part leaves to others, tried in this order."""
_SLACK_BYTES, _SLACK_SHARE = 16 << 20, 1 / 16
"""Others are left so much beyond what they were seen to take, or on a device this share of that if it is more: an
allocator that keeps what was freed takes a little more in the next steps."""
_NOISE_BYTES = 8 << 20
"""What others need while a part waits may differ by this much from step to step."""
_LATER = "Later parts, gradients that add up, and state that the optimizer makes may need more."
_BESIDE = (
    "The process took {} between two calls of compiled parts, more than the budget of {}: what the loop itself does "
    "there, such as the update of an optimizer, takes memory that no plan of a part can spare. Raise the budget, or "
    "give outgrow.compile the whole step, which plans the update as well."
)
_SEARCHES = (
    "torch.backends.cudnn.benchmark is on. A part's backward pass runs in a thread of autograd's, where cuDNN searches "
    "anew for the quickest algorithms: that may take memory beyond the budget, and find others than the forward pass "
    "has. Set it to False, or give outgrow.compile the whole step."
)
_MOST_RUNS = 3
"""After this many runs a part is planned again, even if something was planned during each of its waits."""
NOBODY = Training((), ())
"""A part trains nothing of its own: its parameters are inputs."""


@dataclass(frozen=True, slots=True)
class Room:
    """What of the budget is left to others: at all times, and beyond that while a part waits for its backward pass."""

    always_bytes: int
    waiting_bytes: int = 0


@dataclass(eq=False)
class Pause:
    """A run waits: what others took when it began, what the process held when it paused, and the most since then.

    It is `clean` as long as nothing is planned meanwhile, which takes memory once.
    """

    others_bytes: int
    held_bytes: int
    highest_bytes: int = 0
    clean: bool = True


@dataclass
class Shared:
    """What the parts of one budget share on one device.

    Each run has a platform, since it may wait while others run: `idle` are those that no run has, and `another` makes
    one more. The first is for planning, and takes nothing. `taken_bytes` is the most that was seen beyond the baseline,
    and `highest_bytes` the most that the process took, where memory is apart, as if each part had always been planned
    as it is by now; the user `is_told` once of what the loop takes beside. `casts` are those of an autocast block,
    `waiting` are the runs that wait, and `plans` those that somebody still holds, by number.
    """

    settings: Settings
    another: Callable[[], Platform]
    platform: Platform
    baseline_bytes: int
    machine: Machine
    taken_bytes: int = 0
    highest_bytes: int = 0
    is_told: bool = False
    idle: list[Platform] = field(default_factory=list[Platform])
    casts: Casts = field(default_factory=Casts)
    waiting: WeakSet[Pause] = field(default_factory=WeakSet[Pause])
    numbers: Iterator[int] = field(default_factory=count)
    plans: WeakValueDictionary[int, "Ready"] = field(default_factory=WeakValueDictionary[int, "Ready"])

    @property
    def is_apart(self) -> bool:
        """Whether a run has its memory for itself, also while it waits."""
        return self.platform.anchored

    def taken(self) -> Platform:
        """Return a platform for a run, which is idle no more."""
        if not self.idle:
            return self.another()
        found = max(self.idle, key=lambda platform: platform.resting_bytes())
        self.idle.remove(found)
        return found

    def make_way(self, platform: Platform, ready: "Ready", args: Sequence[object]) -> None:
        """Where a run would have too little room on its busy platform, those that are idle give theirs back."""
        arena_bytes = _arena_bytes(ready.program)
        more = max(0, arena_bytes - platform.resting_bytes())
        if self.idle and self.platform.process_bytes() + more > self.baseline_bytes + self.settings.budget_bytes:
            self.give_back()
        self.platform.give_way(more, ready.own_bytes - arena_bytes, _storages(args))

    def give_back(self) -> None:
        """Give back what idle platforms keep for the next run."""
        for platform in self.idle:
            platform.close()

    def hold(self, ready: "Ready") -> None:
        """Count a plan among those that somebody holds; once there are none, nobody runs on idle platforms any more."""
        if ready.number not in self.plans:
            finalize(ready, self._let_go).atexit = False
        self.plans[ready.number] = ready

    def _let_go(self) -> None:
        if not any(True for _ in self.plans.values()):
            self.idle.clear()

    def note(self, seen_bytes: int = 0) -> None:
        """Note what the process takes at most, before the mark begins again; a run may have seen more."""
        high_water = max(self.platform.high_water_bytes(), seen_bytes)
        for pause in self.waiting:
            pause.highest_bytes = max(pause.highest_bytes, high_water)
        self.taken_bytes = max(self.taken_bytes, high_water - self.baseline_bytes)
        if self.is_apart:
            self.highest_bytes = max(self.highest_bytes, high_water)

    def tell_of_others(self) -> None:
        """Tell, once, if more than the budget was taken since the last run, none of which waits.

        To be asked where nothing was compiled meanwhile, which takes memory once.
        """
        taken = self.platform.high_water_bytes() - self.baseline_bytes
        if taken > self.settings.budget_bytes and not self.waiting and not self.is_told:
            self.is_told = True
            remark(_BESIDE.format(format_bytes(taken), format_bytes(self.settings.budget_bytes)))

    def others_bytes(self, args: Sequence[object]) -> int:
        """Bytes that the process holds beyond its baseline and the inputs of a call."""
        held = self.platform.held_bytes(_storages(args))
        return max(0, self.platform.process_bytes() - self.resting_bytes() - self.baseline_bytes - held)

    def resting_bytes(self) -> int:
        """What is kept for runs that come, also those of whole steps."""
        return self.platform.idle_bytes()


@dataclass
class Ready:
    """A part for inputs of some kind: captured, planned and lowered.

    `number` counts such parts, `seen` is what was seen of the inputs, and `shapes` are those of the inputs that are no
    state. `hole` is the number of the instruction that stands for everything else, `open` are the results that can have
    gradients, `places` counts the addends that autograd takes for each input that wants a gradient, `own_bytes` is what
    the program needs, and `room` what the plan leaves to others. It has run as planned (`runs`), or `as_written` in its
    ample room. Others were seen to take `beside_bytes` while a run waited, and `staying_bytes` when it went on.
    `is_settled` once planned from what runs have shown, `is_known` once gradients have arrived in the way that the
    capture assumed; its backward pass is captured with this `casting`.
    """

    number: int
    origin: Origin
    seen: Seen
    shapes: tuple[tuple[int, ...], ...]
    captured: Captured
    planned: Planned
    program: Program
    hole: int | None
    open: tuple[int, ...]
    between: Between
    places: tuple[int, ...]
    own_bytes: int
    room: Room
    runs: int = 0
    as_written: int = 0
    beside_bytes: int | None = None
    staying_bytes: int = 0
    is_settled: bool = False
    is_known: bool = False
    casting: Casting = NO_CASTING
    is_closed: bool = False

    @property
    def awaited(self) -> dict[int, Result]:
        """What the hole returns, by the number of the result that it is the gradient for."""
        numbers, call = open_results(hole_of(self.captured.graph)), self.program.instructions[self.hole or 0]
        assert isinstance(call, Call), "the hole is a call"
        return dict(zip(numbers, (result for result in call.results if result is not None), strict=True))

    @cached_property
    def views(self) -> dict[int, ViewOf]:
        """The results that are views of inputs, and get their gradients by the part."""
        returned = self.captured.returned
        results, *_ = pytree.tree_unflatten(returned.leaves, returned.structure)
        return {at: results[at] for at in self.open if isinstance(results[at], ViewOf)}

    @cached_property
    def casts(self) -> tuple[int, ...]:
        """The inputs of which it makes a copy of another type."""
        return cast_inputs(self.captured)

    @cached_property
    def more_in_core_bytes(self) -> int:
        """What both passes take in core beyond what they take as planned."""
        in_core, as_planned = by_itself(self)
        return max(0, in_core.peak_bytes - as_planned.peak_bytes)

    @property
    def arrival(self) -> Arrival:
        """How it awaits gradients."""
        found = self.awaited
        lies = {at: telling(result.geometry.shape, result.geometry.strides) for at, result in found.items()}
        return Arrival(tuple(lies.get(at) for at in self.open), self.casting)

    @property
    def has_shown(self) -> bool:
        """Whether runs have shown what there is to plan from."""
        return self.hole is None or self.beside_bytes is not None or self.runs >= _MOST_RUNS

    def learn(self, pause: Pause, staying_bytes: int) -> None:
        """Keep what a pause has shown; at its end the process held `staying_bytes` more than when it began."""
        beside = pause.others_bytes + max(0, pause.highest_bytes - pause.held_bytes)
        self.beside_bytes = max(beside, self.beside_bytes or 0)
        self.staying_bytes = max(self.staying_bytes, pause.others_bytes + max(0, staying_bytes))


def shown(shared: Shared, ready: Ready, now: int) -> int:
    """Return what others take: `now`, or where memory is apart the most that they took.

    There the memory of the part's inputs and results, which is no part of its arena, counts as its own.
    """
    if not shared.is_apart:
        return now
    beside = ready.own_bytes - _arena_bytes(ready.program)
    present = shared.platform.process_bytes() - shared.resting_bytes() - beside
    return max(0, max(present, shared.highest_bytes - ready.own_bytes) - shared.baseline_bytes)


def _storages(args: Sequence[object]) -> Iterator[torch.UntypedStorage]:
    return (arg.untyped_storage() for arg in args if isinstance(arg, Tensor))


def _arena_bytes(program: Program) -> int:
    return 0 if program.addresses is None else program.addresses.arena_bytes


def is_outdated(shared: Shared, ready: Ready, others: int) -> bool:
    """Whether a part is to be planned again: others take more than is left to them, or runs have shown more.

    Where memory is apart, costs are known before, and a part whose plan is empty has nothing to gain.
    """
    is_new = ready.runs > 0 and not ready.is_settled
    if shared.is_apart:
        is_rewritten = bool(ready.planned.plan.decisions)
        return (is_new and is_rewritten) or others + ready.own_bytes > shared.settings.budget_bytes
    room, always, beside = ready.room, max(others, ready.staying_bytes), ready.beside_bytes or 0
    is_narrow = beside > room.always_bytes + room.waiting_bytes + _NOISE_BYTES
    return (is_new and ready.has_shown) or is_narrow or always > room.always_bytes + _SLACK_BYTES


def fits_whole(shared: Shared, captured: Captured, others: int) -> bool:
    """Whether all that a part ever makes fits at once beside what others take, so that nothing depends on garbage."""
    made_bytes = sum(storage.size_bytes for storage in captured.graph.storages.values())
    return others + made_bytes <= shared.settings.budget_bytes


def planned_part(
    shared: Shared, captured: Captured, origin: Origin, args: Sequence[object], others: int, before: Ready | None
) -> Ready:
    """Plan a part with as much left to others as they need; while that is unknown, with a share of what is left.

    Raises `Infeasible` if the part has no plan although nothing is left for others.
    """
    searches = captured.device.type == "cuda" and torch.backends.cudnn.benchmark
    if searches and any(map(chooses, captured.graph.ops)):
        remark(_SEARCHES)
    shared.give_back()
    for pause in shared.waiting:
        pause.clean = False
    platform = shared.platform
    given = captured.given(NOBODY, [plain(arg) for arg in args])
    platform.make_room(given)
    rooms = _rooms(shared, captured, others, before)
    for room in rooms:
        try:
            planned, program = _fitted(shared, given, room, is_last=room == rooms[-1])
        except Infeasible as refusal:
            if room != rooms[-1]:
                continue
            if before is not None:
                raise
            raise refusal.saying(_LATER) from None
        else:
            break
    platform.install()
    hole = hole_of(captured.graph)
    own = platform.needed_bytes(planned, program)
    found = between(captured, planned.derived, hole)
    waits_at = None if hole is None else planned.derived.op_positions[hole.name]
    if before is not None:
        shared.highest_bytes += own - before.own_bytes
        return replace(
            before,
            planned=planned,
            program=program,
            hole=waits_at,
            between=found,
            own_bytes=own,
            room=room,
            is_settled=shared.is_apart or before.has_shown,
            is_closed=False,
        )
    inputs = [args[at] for at in origin.inputs]
    return Ready(
        number=next(shared.numbers),
        origin=origin,
        seen=glance_at_inputs(args),
        shapes=tuple(tuple(item.shape) for item in inputs if isinstance(item, Tensor)),
        captured=captured,
        planned=planned,
        program=program,
        hole=waits_at,
        open=open_results(hole),
        between=found,
        places=tuple(map(len, found.sources)),
        own_bytes=own,
        room=room,
    )


def by_itself(ready: Ready) -> tuple[Trace, Trace]:
    """Return a part in core and as planned, simulated without what others take while it waits."""
    planned, hole = ready.planned, hole_of(ready.captured.graph)
    costs = planned.costs if hole is None else {**planned.costs, hole.name: Cost(0.0)}
    return replay(planned.graph, costs, planned.machine), replay(planned.derived, costs, planned.machine)


def may_stay(shared: Shared, ready: Ready, others: int) -> bool:
    """Whether a plan may stay if none can be made for what others take now; then it counts as made for that."""
    always, beside = max(others, ready.staying_bytes), ready.beside_bytes or 0
    if shared.is_apart:
        needed = always + ready.own_bytes
    else:
        _, trace = by_itself(ready)
        needed = max(always + trace.peak_bytes, beside + _waiting_bytes(ready, trace))
    if needed > shared.settings.budget_bytes:
        return False
    ready.room = Room(always, max(0, beside - always))
    ready.is_settled = True
    return True


def _waiting_bytes(ready: Ready, trace: Trace) -> int:
    """Return what a run of this trace holds at least while it waits for its backward pass."""
    hole = hole_of(ready.captured.graph)
    if hole is None:
        return 0
    begin = next(span.begin for span in trace.spans if span.lane is Lane.COMPUTE and span.label == hole.name)
    held = [size for at, size, _ in memory_over_time(trace.events) if at <= begin]
    return min(held[-2:], default=0)  # the last may be of the gradients that arrive


def _rooms(shared: Shared, captured: Captured, others: int, before: Ready | None) -> list[Room]:
    """Return what may be left to others, who take `others` bytes now, in the order in which to try it."""
    if shared.is_apart and before is not None and before.runs:
        return [Room(others + max(_SLACK_BYTES, int(others * _SLACK_SHARE))), Room(others)]
    budget_bytes = shared.settings.budget_bytes
    unseen = shared.platform.unseen_bytes(captured.graph, budget_bytes)
    shares = [int(share * max(0, budget_bytes - others - unseen)) for share in _SHARES]
    if hole_of(captured.graph) is None:
        shares = [0]
    if shared.is_apart:
        return [Room(others + unseen + share) for share in shares]
    if before is None:
        return [Room(others, share) for share in shares]
    always, beside = max(others, before.staying_bytes, before.room.always_bytes), before.beside_bytes
    waiting = shares if beside is None else [max(0, beside + more - always) for more in (_SLACK_BYTES, 0)]
    return [Room(always, share) for share in waiting]


def _fitted(shared: Shared, given: Given, room: Room, *, is_last: bool) -> tuple[Planned, Program]:
    """Return a plan that leaves `room` to others, and its program. Raises `Infeasible` where there is none."""
    captured, platform = given.captured, shared.platform
    graph = captured.graph
    known = dict(platform.known(captured, silent))
    hole = hole_of(graph)
    if hole is not None:
        known[cost_key(graph, hole)] = Cost(0.0, room.waiting_bytes, measured=True)

    def overhead_within(budget_bytes: int) -> int:
        unseen = 0 if shared.is_apart else platform.unseen_bytes(graph, budget_bytes)
        return room.always_bytes + unseen

    demand = Demand(
        platform=platform,
        machine=shared.machine,
        planner=shared.settings.planner,
        captured=captured,
        known=known,
        fixed=platform.fixed(given).union(captured.slots),
        resting=frozenset(),
        overhead_within=overhead_within,
        progress=silent,
    )
    return fitted(demand, shared.settings.budget_bytes, is_new=is_last, is_thorough=True)


def close(shared: Shared, ready: Ready) -> None:
    """A part for inputs of some kind is planned anew, or wanted no more; runs of it that wait go on."""
    ready.is_closed = True
    for platform in shared.idle:
        platform.forget(ready.program)


def plain(arg: object) -> object:
    """Return an argument without its history."""
    return arg.detach() if isinstance(arg, Tensor) else arg
