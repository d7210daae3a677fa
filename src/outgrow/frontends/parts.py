"""How does a part of a loop run? Its forward pass, a wait for gradients, then its backward pass.

A part is a forward pass; its backward pass comes later, when autograd asks for it. Both are one step with a hole in it
(`frontends.joint`), so one plan moves or builds again what waits between the two passes.

    forward   instructions up to the hole, which give the results
    backward  the gradients enter; the other instructions give those of the part's inputs

Parts share a budget (`frontends.shared_budget`). Parameters, their gradients and the optimizer's state stay on the
device.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from outgrow.analysis.cost import signature as cost_signature
from outgrow.errors import Infeasible, Uncapturable
from outgrow.frontends import calls
from outgrow.frontends.arrivals import Arrival, Beginning, arrival_of, begin_alike
from outgrow.frontends.between import raise_versions, versions
from outgrow.frontends.capture import Captured, Result, capture
from outgrow.frontends.inductor import by_kernels
from outgrow.frontends.joint import check_writes, hole_of, joint, origin_of, with_checkpoints
from outgrow.frontends.platform import Platform
from outgrow.frontends.settings import Settings
from outgrow.frontends.shared_budget import (
    NOBODY,
    Pause,
    Ready,
    Shared,
    close,
    is_outdated,
    may_stay,
    plain,
    planned,
    shown,
)
from outgrow.frontends.signature import signature
from outgrow.frontends.state import BatchSlot
from outgrow.runtime import arena
from outgrow.runtime.execute import Progress, Run, is_as_captured
from outgrow.runtime.heap import fill
from outgrow.runtime.program import Result as CallResult
from outgrow.runtime.repeated import again

_MOST_KINDS = 32
"""A part that sees ever other inputs forgets those that it has not seen for the longest."""


class Part:
    """A forward pass and its backward pass, planned together for each kind of inputs when it is first called."""

    def __init__(
        self, module: fx.GraphModule, settings: Settings, share: Callable[[Settings, Sequence[object]], Shared]
    ) -> None:
        """`share` says what the part shares with others, for settings and the inputs of a call."""
        self._origin = origin_of(module)
        self._module, self._settings, self._share = with_checkpoints(module), settings, share
        self._ready: dict[Hashable, Ready] = {}
        self._others: dict[tuple[Hashable, Arrival], Ready] = {}

    def __call__(self, *args: object) -> object:
        """Run the forward pass; with gradients, the results know their backward pass."""
        asked = self._prepared(self._share(self._settings, args), args)
        ready = asked.ready
        if ready.hole is not None:
            return tuple(_Pair.apply(asked, *args, *_again(ready, args)))
        waiting = _Waiting(asked)
        completed = False
        try:
            waiting.run.advance(len(ready.program.instructions))
            completed = True
        finally:
            if not completed:
                waiting.end()
        raise_versions(args, ready.between.writes)
        returned, _ = _returned(ready, waiting.run)
        waiting.complete()
        return returned

    def _prepared(self, shared: Shared, args: Sequence[object]) -> "_Asked":
        """Return a call with the part for its inputs, planned again once more is known."""
        shared.note()
        leaves = tuple(arg.is_leaf for arg in args if isinstance(arg, Tensor))
        key = signature(self._module, (), (), args, {}), leaves
        ready = self._ready.get(key)
        others = shared.others_bytes(args)
        if ready is None:
            captured = self._captured(args)
            shared.platform.clear_away()
            self._use(shared, key, planned(shared, captured, self._origin, args, others, None))
            self._drop_oldest(shared)
        else:
            others = shown(shared, ready, others)
            self._replan(shared, key, args, others)
        self._ready[key] = self._ready.pop(key)  # the last is what was asked for last
        return _Asked(self, shared, self._ready[key], key, others, args)

    def _captured(self, args: Sequence[object], arrival: Arrival | None = None) -> Captured:
        captured = capture(joint(self._module, args, arrival), (), (), [plain(arg) for arg in args])
        if hole_of(captured.graph) is not None:
            check_writes(captured, args)
        return by_kernels(captured, self._settings.kernels)

    def as_they_arrive(self, asked: "_Asked", waiting: "_Waiting", begun: Beginning, arrival: Arrival) -> "_Waiting":
        """Return a run that waits for gradients as they arrive: begun anew, or the same if it would begin otherwise."""
        key, shared, present = asked.key, asked.shared, self._ready.get(asked.key, asked.ready)
        found = present if present.arrival == arrival else self._others.pop((key, arrival), None)
        captured = self._captured_again(asked, begun, arrival) if found is None else found.captured
        if captured is None:
            return waiting
        waiting.end()
        others = shared.others_bytes(asked.args)
        if present is not found:
            self._others[key, present.arrival] = present
        if found is not None:
            self._use(shared, key, found)
            self._replan(shared, key, asked.args, shown(shared, found, others))
        else:
            found = planned(shared, captured, self._origin, asked.args, others, None)
            found.number, found.open, found.is_known = asked.ready.number, asked.ready.open, True
            self._use(shared, key, found)
        self._drop_oldest(shared)
        ready = self._ready[key]
        assert ready.hole is not None, "it is the same part"
        with begun.again():
            again = _Waiting(_Asked(self, shared, ready, key, others, begun.inputs))
            again.run.advance(ready.hole)
        return again

    def _use(self, shared: Shared, key: Hashable, ready: Ready) -> None:
        """Let a plan serve from now on."""
        self._ready[key] = shared.plans[ready.number] = ready

    def _captured_again(self, asked: "_Asked", begun: Beginning, arrival: Arrival) -> Captured | None:
        """Return the part captured for gradients that arrive so; None if it does something else before."""
        old = asked.ready.captured
        with begun.again():
            captured = self._captured(asked.args, arrival)
        return captured if begin_alike(old.graph, captured.graph) else None

    def _replan(self, shared: Shared, key: Hashable, args: Sequence[object], others: int) -> None:
        if is_outdated(shared, self._ready[key], others):
            self._plan_again(shared, key, args, others)

    def _plan_again(self, shared: Shared, key: Hashable, args: Sequence[object], others: int) -> None:
        """Plan from what runs have shown; where that leaves no plan, one that leaves enough to others stays."""
        ready = self._ready[key]
        try:
            self._use(shared, key, planned(shared, ready.captured, self._origin, args, others, ready))
        except Infeasible:
            if not may_stay(shared, ready, others):
                raise
        else:
            close(shared, ready)

    def _drop_oldest(self, shared: Shared) -> None:
        """Forget the kind of inputs that was not seen for the longest, if there is one too many."""
        kinds: dict[Any, Ready]
        for kinds in (self._ready, self._others):
            if len(kinds) > _MOST_KINDS:
                close(shared, kinds.pop(next(iter(kinds))))


@dataclass(frozen=True)
class _Asked:
    """A call of a part on its inputs: what it shares, the part for such inputs, by its key, and what others take."""

    part: Part
    shared: Shared
    ready: Ready
    key: Hashable
    others_bytes: int
    args: Sequence[object]


class _Waiting:
    """A run, which waits between its forward and its backward pass.

    If nobody wants the latter, the run ends with this object.
    """

    def __init__(self, asked: _Asked) -> None:
        """Begin the run of a call."""
        self.shared, self.ready = shared, ready = asked.shared, asked.ready
        args, self._pause = asked.args, Pause(asked.others_bytes, 0)
        program, capacity = ready.program, ready.prepared.plan.budget.capacity_bytes
        call = calls.bind(ready.captured, program, NOBODY, [plain(arg) for arg in args], {})
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
        if not self.shared.is_apart:
            self.shared.note(self.run.memory.high_water_bytes)
            self.platform.reset_high_water()
            self._pause.held_bytes = self.platform.process_bytes()
            self.shared.waiting.add(self._pause)

    def go_on(self, arriving_bytes: int) -> None:
        """Note how much everything else took, beside the gradients that arrive."""
        self.shared.note()
        self.shared.waiting.discard(self._pause)
        self.platform.settle_libraries()
        if not self.shared.is_apart and self._pause.clean:
            now = self.platform.process_bytes() - self.platform.resting_bytes()
            self.ready.learn(self._pause, now - arriving_bytes - self._pause.held_bytes)

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
        self.shared.note(run.memory.high_water_bytes)
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
    def forward(ctx: Any, asked: _Asked, *_args: object) -> tuple[object, ...]:
        """Return what the part returns."""
        ready, args = asked.ready, asked.args
        assert ready.hole is not None, "a part with gradients has a hole"
        begun = Beginning.of(args, ready.between.writes, is_first=not ready.is_known)
        waiting = _Waiting(asked)
        waiting.run.advance(ready.hole)
        raise_versions(args, ready.between.writes)
        there, _ = _returned(ready, waiting.run)
        returned = [plain(item) for item in there]  # a run that knew its backward pass would live for ever
        closed = [item for at, item in enumerate(returned) if isinstance(item, Tensor) and at not in ready.open]
        ctx.mark_non_differentiable(*closed)
        ctx.set_materialize_grads(False)
        ctx.asked, ctx.waiting, ctx.results = asked, waiting, there
        ctx.wanted, ctx.repeated = _wanted(args), len(_args) - len(args)
        ctx.versions = _versions(ready, args, there)
        ctx.begun = begun
        waiting.wait()
        return tuple(returned)

    @staticmethod
    @torch._dynamo.disable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[object, ...]:
        """Return what adds up to the gradients of the part's inputs; None where no gradient has arrived."""
        if ctx.waiting is None:
            raise RuntimeError("This backward pass has run already, and outgrow keeps nothing for a second one.")
        asked, waiting, results, begun = ctx.asked, ctx.waiting, ctx.results, ctx.begun
        ctx.asked, ctx.waiting, ctx.results, ctx.begun = None, None, (), None
        _check_backward()
        if _versions(asked.ready, asked.args, results) != ctx.versions:
            raise RuntimeError(
                "An input or a result of a compiled part was changed in place before the backward pass, which the plan "
                "of the part reads. Change a copy of it, or change it after the backward pass."
            )
        del results
        arriving = {at: gradients[at] for at in asked.ready.open}
        waiting.go_on(sum(gradient.nbytes for gradient in arriving.values() if gradient is not None))
        if all(gradient is None for gradient in arriving.values()):
            waiting.end()
            return (None,) * (1 + len(ctx.wanted) + ctx.repeated)
        arrival = arrival_of([*arriving.values()])
        may_begin_anew = begun is not None and begun.is_unchanged() and ctx.wanted == _wanted(asked.args)
        if arrival != asked.ready.arrival and may_begin_anew:
            waiting = asked.part.as_they_arrive(asked, waiting, begun, arrival)
        waiting.ready.is_known = True
        del asked, begun
        found = _gradients(waiting, arriving)
        firsts = iter([items[0] if items else None for items in found])
        others = [item for items in found for item in items[1:]]
        return (None, *(next(firsts) if is_wanted else None for is_wanted in ctx.wanted), *others)


def _gradients(waiting: _Waiting, arriving: Mapping[int, Tensor | None]) -> list[list[Tensor | None]]:
    """Run the backward pass; return the addends of the gradients of inputs."""
    ready, run = waiting.ready, waiting.run
    run.receive(_arrived(ready, run, arriving))
    run.advance(len(run.program.instructions))
    _, found = _returned(ready, run)
    waiting.complete()
    missing = {order for order, at in enumerate(ready.awaited) if arriving[at] is None}
    return [
        [
            None if on and on <= missing else item.clone() if is_borrowed else item
            for item, on, is_borrowed in zip(items, sources, borrowed, strict=True)
        ]
        for items, sources, borrowed in zip(found, ready.between.sources, ready.between.borrowed, strict=True)
    ]


def _wanted(args: Sequence[object]) -> list[bool]:
    """Whether the gradient of each input is wanted."""
    return [isinstance(arg, Tensor) and arg.requires_grad for arg in args]


def _again(ready: Ready, args: Sequence[object]) -> list[object]:
    """Return each input whose gradient has several addends once more for each but the first: autograd adds them up."""
    leaves = [arg for arg, is_wanted in zip(args, _wanted(args), strict=True) if is_wanted]
    return [leaf for leaf, addends in zip(leaves, ready.between.sources, strict=True) for _ in addends[1:]]


def _returned(ready: Ready, run: Run) -> tuple[list[object], list[list[Tensor]]]:
    """Return the results of a part that are there by now, and the addends of gradients that are."""
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


def _versions(ready: Ready, inputs: Sequence[object], results: Sequence[object]) -> list[int]:
    return [*versions(inputs, ready.between.inputs), *versions(results, ready.between.results)]


def _check_backward() -> None:
    """Refuse a backward pass that eager would run otherwise than it was captured."""
    if torch.is_grad_enabled():
        raise Uncapturable(
            "a compiled part keeps nothing for a gradient of its gradient (create_graph=True); give outgrow.compile "
            "the whole step"
        )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise Uncapturable(
            "backward() is called under autocast, and a compiled part multiplies there as it does without; call it "
            "behind the autocast block, as torch's manual says"
        )


def _arrived(ready: Ready, run: Run, gradients: Mapping[int, Tensor | None]) -> list[Tensor]:
    """Return what the hole returns, laid out as was captured: gradients that the program may write over.

    Those that have addresses are copied there by themselves; where none has arrived it is zero.
    """
    awaited, addresses = ready.awaited, run.program.addresses
    if any(gradient is not None for at, gradient in gradients.items() if at not in awaited):
        raise Uncapturable(
            "a gradient arrives for a result of a compiled part that had none before, and what the part has read was "
            "changed since; change it after the backward pass, or give outgrow.compile the whole step"
        )
    placed = () if addresses is None else addresses.stays.get(run.position, ())
    home = next(gradient.device for gradient in gradients.values() if gradient is not None)
    pairs = [(gradients[at], result) for at, result in awaited.items()]
    return [
        gradient
        if gradient is not None and result.born in placed and is_as_captured(gradient, result.geometry)
        else _laid_out(gradient, result, home)
        for gradient, result in pairs
    ]


def _laid_out(gradient: Tensor | None, result: CallResult, home: torch.device) -> Tensor:
    like = result.geometry
    made = torch.empty_strided(like.shape, like.strides, dtype=like.dtype, device=home)
    return made.zero_() if gradient is None else fill(made, gradient)
