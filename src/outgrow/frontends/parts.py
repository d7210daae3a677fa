"""How does a part of a loop keep within the budget? It is planned with its backward pass, and leaves room for others.

A part is a forward pass; its backward pass comes later, when autograd asks for it. Both are one step with a hole in it
(`frontends.joint`), so one plan moves or builds again what waits between the two passes.

    forward   instructions up to the hole, which give the results
    backward  the gradients enter; the other instructions give those of the part's inputs

Other parts, the loss and the optimizer need room as well. Parts of one budget share it: what a process holds besides a
part's own inputs, what waits for the backward of other parts included, is overhead when the part is planned. Beyond
that a first plan leaves most of what there is to others (`_SHARES`), and the second one what they were seen to take:

    on a CPU      while the part waits: memory that it does not hold then serves whoever wants it. It is the workspace
                  of the hole
    on a device   at all times: the arena of a part is its own for as long as it waits, and for the next step as well

What others take anew, as an optimizer's state in the first step, is seen when it is there; parts make room for it then.
Parameters, their gradients and the optimizer's state stay on the device.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import finalize

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from outgrow.analysis.cost import Cost
from outgrow.analysis.cost import signature as cost_signature
from outgrow.errors import Infeasible
from outgrow.frontends import calls
from outgrow.frontends.capture import Captured, Result, capture
from outgrow.frontends.inductor import by_kernels
from outgrow.frontends.joint import check_writes, hole_of, joint, open_results, position_of, with_checkpoints
from outgrow.frontends.platform import Platform
from outgrow.frontends.prepare import Prepared
from outgrow.frontends.settings import Settings
from outgrow.frontends.signature import signature
from outgrow.frontends.state import BatchSlot, Training
from outgrow.frontends.within_budget import Demand, fitted
from outgrow.ir.machine import Machine
from outgrow.planning.problem import silent
from outgrow.runtime import arena
from outgrow.runtime.execute import Progress, Run, is_as_captured
from outgrow.runtime.program import Call, Program
from outgrow.runtime.program import Result as CallResult
from outgrow.runtime.repeated import again

_SHARES = (0.9, 0.75, 0.5, 0.25, 0.0)
"""Shares of what is left that a part leaves to others, tried in this order."""
_SLACK_BYTES, _SLACK_SHARE = 16 << 20, 4
"""What is left to others beyond what they were seen to take: so much, or on a device by this power of 2 of that, if it
is more: an allocator that keeps what was freed takes a little more in the next steps."""
_NOBODY = Training((), ())
_MOST_KINDS = 32
"""A part that sees ever other inputs forgets those that it has not seen for the longest."""


@dataclass(frozen=True, slots=True)
class Room:
    """What of the budget is left to others: at all times, and beyond that while a part waits for its backward pass."""

    always_bytes: int
    waiting_bytes: int = 0


@dataclass
class Shared:
    """What the parts of one budget share on one device; `pauses` counts how often one of them began to wait.

    Each run has a platform, since it may wait while others run: `idle` are those that no run has, and `another` makes
    one more. The first is for planning, and takes nothing. `highest_bytes` is the most that the process took, where
    memory is apart, as if each part had always been planned as it is by now.
    """

    settings: Settings
    another: Callable[[], Platform]
    platform: Platform
    baseline_bytes: int
    machine: Machine
    pauses: int = 0
    highest_bytes: int = 0
    idle: list[Platform] = field(default_factory=list[Platform])

    @property
    def is_apart(self) -> bool:
        """Whether a run has its memory for itself, also while it waits."""
        return self.platform.anchored

    def taken(self, program: Program) -> Platform:
        """Return a platform for a run. Where it would have too little room, others that are idle give theirs back."""
        if not self.idle:
            return self.another()
        found = max(self.idle, key=lambda platform: platform.resting_bytes())
        self.idle.remove(found)
        more = max(0, _arena_bytes(program) - found.resting_bytes())
        if self.idle and self.platform.process_bytes() + more > self.baseline_bytes + self.settings.budget_bytes:
            self.give_back()
        return found

    def give_back(self) -> None:
        """Give back what idle platforms keep for the next run."""
        for platform in self.idle:
            platform.close()

    def note(self) -> None:
        """Note what the process takes at most, before the mark begins again."""
        if self.is_apart:
            self.highest_bytes = max(self.highest_bytes, self.platform.high_water_bytes())

    def others_bytes(self, args: Sequence[object]) -> int:
        """Bytes that the process holds beyond its baseline and the inputs of a call."""
        held = self.platform.held_bytes([arg for arg in args if isinstance(arg, Tensor)])
        return max(0, self.platform.process_bytes() - self.resting_bytes() - self.baseline_bytes - held)

    def resting_bytes(self) -> int:
        """What is kept for runs that come: by each platform where memory is apart, else by the process."""
        if self.is_apart:
            return sum(platform.resting_bytes() for platform in self.idle)
        return self.platform.resting_bytes()


@dataclass
class Ready:
    """A part for inputs of some kind: captured, planned and lowered.

    `hole` is the number of the instruction that stands for everything else, `open` are the results that it hands
    gradients for, `own_bytes` is what the program needs, `room` what the plan leaves to others, and `needed_bytes` what
    they were seen to take while a run waited. It is settled once it was planned from what a run has shown.
    """

    captured: Captured
    prepared: Prepared
    program: Program
    hole: int | None
    open: tuple[int, ...]
    own_bytes: int
    room: Room
    runs: int = 0
    needed_bytes: int | None = None
    is_settled: bool = False
    is_closed: bool = False


class Part:
    """A forward pass and its backward pass, planned together for each kind of inputs when it is first called."""

    def __init__(
        self, module: fx.GraphModule, settings: Settings, share: Callable[[Settings, Sequence[object]], Shared]
    ) -> None:
        """`share` says what the part shares with others, for settings and the inputs of a call."""
        self._module, self._settings, self._share = with_checkpoints(module), settings, share
        self._ready: dict[Hashable, Ready] = {}

    def __call__(self, *args: object) -> object:
        """Run the forward pass; with gradients, the results know their backward pass."""
        shared = self._share(self._settings, args)
        ready = self._prepared(shared, args)
        if ready.hole is not None:
            return tuple(_Pair.apply(shared, ready, args, *args))
        waiting = _Waiting(shared, ready, args)
        completed = False
        try:
            waiting.run.advance(len(ready.program.instructions))
            completed = True
        finally:
            if not completed:
                waiting.end()
        returned, _ = _returned(ready, waiting.run)
        waiting.complete()
        return returned

    def _prepared(self, shared: Shared, args: Sequence[object]) -> Ready:
        """Return the part for these inputs, planned again once more is known of costs or more is held besides."""
        shared.note()
        key = signature(self._module, (), (), args, {})
        ready = self._ready.get(key)
        others = shared.others_bytes(args)
        if ready is None:
            captured = capture(joint(self._module, args), (), (), [_plain(arg) for arg in args])
            check_writes(captured, args)
            captured = by_kernels(captured, self._settings.kernels)
            shared.platform.clear_away()
            self._ready[key] = _planned(shared, captured, args, others, None)
            self._drop_oldest(shared)
        else:
            others = _shown(shared, ready, others)
            if _is_outdated(shared, ready, others):
                self._ready[key] = _planned(shared, ready.captured, args, others, ready)
                _close(shared, ready)
        self._ready[key] = self._ready.pop(key)  # the last is what was asked for last
        return self._ready[key]

    def _drop_oldest(self, shared: Shared) -> None:
        """Forget the kind of inputs that was not seen for the longest, if there is one too many."""
        if len(self._ready) > _MOST_KINDS:
            _close(shared, self._ready.pop(next(iter(self._ready))))


# Planning ------------------------------------------------------------------------------------------------------------


def _shown(shared: Shared, ready: Ready, now: int) -> int:
    """Return what others take: `now`, or where memory is apart the most that they took.

    There the inputs of the part are reserved by now, and what its results had in the run before.
    """
    if not shared.is_apart:
        return now
    beside = ready.own_bytes - _arena_bytes(ready.program)
    present = shared.platform.process_bytes() - shared.resting_bytes() - beside
    return max(0, max(present, shared.highest_bytes - ready.own_bytes) - shared.baseline_bytes)


def _arena_bytes(program: Program) -> int:
    return 0 if program.addresses is None else program.addresses.arena_bytes


def _is_outdated(shared: Shared, ready: Ready, others: int) -> bool:
    """Whether a part is to be planned again: others take more than is left to them, or a run has shown more of costs.

    Where memory is apart costs are known before, and what moves nothing has nothing to gain.
    """
    is_new = ready.runs > 0 and not ready.is_settled
    if shared.is_apart:
        is_rewritten = bool(ready.prepared.plan.decisions)
        return (is_new and is_rewritten) or others + ready.own_bytes > shared.settings.budget_bytes
    return is_new or others > ready.room.always_bytes + _SLACK_BYTES


def _planned(shared: Shared, captured: Captured, args: Sequence[object], others: int, before: Ready | None) -> Ready:
    """Plan a part with as much left to others as they need; while that is unknown, with a share of what is left.

    Raises `Infeasible` if the part has no plan although nothing is left for others.
    """
    shared.give_back()
    platform = shared.platform
    tensors = captured.tensors(_NOBODY, [_plain(arg) for arg in args], {})
    platform.make_room(captured, tensors)
    rooms = _rooms(shared, captured, others, before)
    for room in rooms:
        try:
            prepared, program = _fitted(shared, captured, tensors, room, is_last=room == rooms[-1])
        except Infeasible:
            if room == rooms[-1]:
                raise
        else:
            break
    platform.install()
    hole = hole_of(captured.graph)
    own = platform.needed_bytes(prepared, program)
    ready = Ready(captured, prepared, program, position_of(hole, program), open_results(hole), own, room)
    if before is not None:
        shared.highest_bytes += own - before.own_bytes
        ready.runs, ready.needed_bytes, ready.is_settled = before.runs, before.needed_bytes, True
    return ready


def _rooms(shared: Shared, captured: Captured, others: int, before: Ready | None) -> list[Room]:
    """Return what may be left to others who take so much by now, in the order in which it is to be tried."""
    if shared.is_apart and before is not None and before.runs:
        return [Room(others + max(_SLACK_BYTES, others >> _SLACK_SHARE)), Room(others)]
    budget_bytes = shared.settings.budget_bytes
    unseen = shared.platform.unseen_bytes(captured.graph, budget_bytes)
    shares = [int(share * max(0, budget_bytes - others - unseen)) for share in _SHARES]
    if hole_of(captured.graph) is None:
        shares = [0]
    if shared.is_apart:
        return [Room(others + unseen + share) for share in shares]
    if before is None:
        return [Room(others, share) for share in shares]
    needed = () if before.needed_bytes is None else (before.needed_bytes + _SLACK_BYTES,)
    return [Room(max(others, before.room.always_bytes), share) for share in (*needed, *shares)]


def _fitted(
    shared: Shared, captured: Captured, tensors: dict[str, Tensor], room: Room, *, is_last: bool
) -> tuple[Prepared, Program]:
    """Return a plan, and its program, that leaves so much to others. Raises `Infeasible` where there is none."""
    graph, platform = captured.graph, shared.platform
    known = dict(platform.known(captured, silent))
    hole = hole_of(graph)
    if hole is not None:
        known[cost_signature(graph, hole)] = Cost(0.0, room.waiting_bytes, measured=True)

    def overhead_within(budget_bytes: int) -> int:
        unseen = 0 if shared.is_apart else platform.unseen_bytes(graph, budget_bytes)
        return room.always_bytes + unseen

    demand = Demand(
        platform=platform,
        machine=shared.machine,
        planner=shared.settings.planner,
        captured=captured,
        known=known,
        fixed=platform.fixed(captured, tensors) | {item.storage for item in captured.inputs},
        overhead_within=overhead_within,
        progress=silent,
    )
    return fitted(demand, shared.settings.budget_bytes, is_new=is_last, is_thorough=True)


def _close(shared: Shared, ready: Ready) -> None:
    """A part for inputs of some kind is planned anew, or wanted no more; runs of it that wait go on."""
    ready.is_closed = True
    for platform in shared.idle:
        platform.forget(ready.program)


# Running -------------------------------------------------------------------------------------------------------------


class _Waiting:
    """A run, which waits between its forward and its backward pass.

    If nobody wants the latter, the run ends with this object.
    """

    def __init__(self, shared: Shared, ready: Ready, args: Sequence[object]) -> None:
        """Begin a run of a part on its inputs."""
        self.shared, self.ready = shared, ready
        self._pause = self._held_bytes = 0
        program, capacity = ready.program, ready.prepared.plan.budget.capacity_bytes
        call = calls.bind(ready.captured, program, _NOBODY, [_plain(arg) for arg in args], {})
        self.platform = shared.taken(program)
        try:
            spill = self.platform.make_ready(program, call.tensors, capacity)
            self.run = calls.made_ready(
                call,
                ready.prepared.costs,
                spill,
                self.platform.memory(program, is_timed=self.platform.observes),
                capacity,
                Progress(),
                observe=self.platform.observes and ready.runs == 0,
            )
        except BaseException:
            shared.idle.append(self.platform)
            raise
        if ready.runs:
            self.run = again(self.run, [], _staying(ready, args, self.run))
        self.end = finalize(self, _end, shared, ready, self.platform, self.run)
        self.run.start()

    def wait(self) -> None:
        """Note that the run waits for its backward pass, and what the process holds."""
        arena.keep_at_most(0)
        self.shared.pauses += 1
        self._pause = self.shared.pauses
        if not self.shared.is_apart:
            self.platform.reset_high_water()
            self._held_bytes = self.platform.process_bytes()

    def go_on(self) -> None:
        """Note how much everything else took, if no other part ran meanwhile."""
        self.shared.note()
        self.platform.settle_libraries()
        if not self.shared.is_apart and self._pause == self.shared.pauses:
            needed = max(0, self.platform.high_water_bytes() - self._held_bytes)
            self.ready.needed_bytes = max(needed, self.ready.needed_bytes or 0)

    def complete(self) -> None:
        """Keep the costs of ops that were observed, and let others have the platform."""
        arena.keep_at_most(0)
        ready, run = self.ready, self.run
        run.memory.end()
        ready.runs += 1
        graph = ready.captured.graph
        seen = {cost_signature(graph, op): run.observed[op.name] for op in graph.ops if op.name in run.observed}
        if seen:
            self.platform.cache.add(seen)
        self.shared.note()
        self.platform.reset_high_water()


def _staying(ready: Ready, args: Sequence[object], run: Run) -> dict[str, torch.UntypedStorage]:
    """Return the storages of a run that lie where they lay: those of parameters."""
    slots = ((item.storage, item.slot) for item in ready.captured.inputs)
    found = {name for name, slot in slots if isinstance(slot, BatchSlot) and isinstance(args[slot.leaf], nn.Parameter)}
    return {name: run.storages[name] for name in found & run.storages.keys()}


def _end(shared: Shared, ready: Ready, platform: Platform, run: Run) -> None:
    """Let others have the platform of a run, which is over, or lets go of everything."""
    if run.position < len(run.program.instructions):
        run.abandon()
    if ready.is_closed:
        platform.forget(ready.program)
    shared.idle.append(platform)


class _Pair(torch.autograd.Function):
    """The forward pass runs the program up to the hole, the backward pass the rest of it."""

    @staticmethod
    def forward(ctx: Any, shared: Shared, ready: Ready, args: Sequence[object], *_args: object) -> tuple[object, ...]:
        """Return what the part returns."""
        assert ready.hole is not None, "a part with gradients has a hole"
        waiting = _Waiting(shared, ready, args)
        waiting.run.advance(ready.hole)
        there, _ = _returned(ready, waiting.run)
        returned = [_plain(item) for item in there]  # a run that knew its backward pass would live for ever
        closed = [item for at, item in enumerate(returned) if isinstance(item, Tensor) and at not in ready.open]
        ctx.mark_non_differentiable(*closed)
        ctx.waiting, ctx.inputs = waiting, args
        ctx.versions = [_version(arg) for arg in args]
        waiting.wait()
        return tuple(returned)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[object, ...]:
        """Return the gradients of the part's inputs."""
        if ctx.waiting is None:
            raise RuntimeError("This backward pass has run already, and outgrow keeps nothing for a second one.")
        waiting, inputs = ctx.waiting, ctx.inputs
        ctx.waiting, ctx.inputs = None, ()
        if [_version(arg) for arg in inputs] != ctx.versions:
            raise RuntimeError("An input of a compiled part was changed in place before the backward pass.")
        waiting.go_on()
        run, ready = waiting.run, waiting.ready
        run.receive(_arrived(run, [gradients[at] for at in ready.open]))
        run.advance(len(run.program.instructions))
        _, found = _returned(ready, run)
        waiting.complete()
        rest = iter(found)
        gradients_of = (next(rest) if isinstance(arg, Tensor) and arg.requires_grad else None for arg in inputs)
        return (None, None, None, *gradients_of)


def _returned(ready: Ready, run: Run) -> tuple[list[object], list[object]]:
    """Return the results of a part that are there by now, and the gradients that are."""
    returned = ready.captured.returned
    there = [_leaf(leaf, ready, run) for leaf in returned.leaves]
    results, gradients = pytree.tree_unflatten(there, returned.structure)
    return results, gradients


def _leaf(leaf: object, ready: Ready, run: Run) -> object:
    if not isinstance(leaf, Result):
        return leaf
    name = ready.program.results[leaf.number]
    geometry = ready.program.geometry[name]
    (found,) = run.read([name]) if geometry.storage in run.storages or name in run.scalars else (None,)
    return found


def _arrived(run: Run, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return what the hole returns, laid out as was captured: gradients that the program may write over.

    Those that have addresses are copied there by themselves.
    """
    hole, addresses = run.program.instructions[run.position], run.program.addresses
    assert isinstance(hole, Call), "a run waits at a call"
    placed = () if addresses is None else addresses.stays.get(run.position, ())
    wanted = [result for result in hole.results if result is not None]
    return [
        gradient if result.born in placed and is_as_captured(gradient, result.geometry) else _laid_out(gradient, result)
        for gradient, result in zip(gradients, wanted, strict=True)
    ]


def _laid_out(gradient: Tensor, result: CallResult) -> Tensor:
    like = result.geometry
    return torch.empty_strided(like.shape, like.strides, dtype=like.dtype, device=gradient.device).copy_(gradient)


def _plain(arg: object) -> object:
    return arg.detach() if isinstance(arg, Tensor) else arg


def _version(arg: object) -> int:
    return arg._version if isinstance(arg, Tensor) else 0
