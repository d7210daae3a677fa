"""How do the two passes of a part run? Up to the hole of its program, and on from there.

    forward   instructions up to the hole, which give the results
    backward  the gradients enter; the other instructions give those of the part's inputs

Between the two a run waits, and notes what others take meanwhile (`frontends.parts.shared_budget`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from weakref import finalize

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from outgrow.analysis.cost import cost_key, with_joint
from outgrow.errors import TierFailure, Uncapturable
from outgrow.frontends import calls
from outgrow.frontends.fake.kernels.ambiguous import is_ambiguous
from outgrow.frontends.parts.shared_budget import NOBODY, Pause, Ready, Shared, plain
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.tracing.captured import GraphResult
from outgrow.runtime import arena
from outgrow.runtime.execute import Run, is_as_captured
from outgrow.runtime.program import Result
from outgrow.runtime.repeated import Running, again
from outgrow.runtime.results import fill


class Waiting:
    """A run, which waits between its forward and its backward pass.

    If nobody wants the backward pass, the run ends with this object.
    """

    def __init__(self, shared: Shared, ready: Ready, others_bytes: int, args: Sequence[object]) -> None:
        """Begin the run of a part on its inputs, while others take `others_bytes`."""
        self.shared, self.ready, self._pause = shared, ready, Pause(others_bytes, 0)
        feed = calls.Feed(ready.captured.given(NOBODY, [*map(plain, args)]), ready.program, NOBODY)
        self.platform = shared.taken()
        with ExitStack() as busy:
            busy.callback(shared.idle.append, self.platform)
            busy.enter_context(self.platform.busy())
            shared.make_way(self.platform, ready, args)
            run = self._made_ready(feed)
            self.run = again(run, [] if ready.runs else None, _staying(ready, args, run))
            self.end = finalize(self, _end, ready, self.platform, self.run, busy.pop_all())
        with self.ended_by_errors():
            self.run.start()

    @contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """End the run at once if the block fails: whoever keeps the error would keep all that the run holds."""
        with ExitStack() as failing:
            failing.callback(self.end)
            yield
            failing.pop_all()

    def _made_ready(self, feed: calls.Feed) -> Run:
        """Return the run of a call; where the disk budget has no room for it, others that are idle give theirs back."""
        try:
            return self._with_room(feed)
        except TierFailure:
            self.shared.give_back()
            return self._with_room(feed)

    def _with_room(self, feed: calls.Feed) -> Run:
        ready, platform = self.ready, self.platform
        capacity, observes = ready.planned.plan.budget.capacity_bytes, platform.observes
        spill = platform.make_ready(ready.program, feed.given.tensors, capacity)
        memory = platform.memory(ready.program, is_timed=observes)
        observe = observes and ready.runs == 0
        return calls.made_ready(feed, spill, memory, capacity, observe=observe)

    def wait(self) -> None:
        """Note that the run waits for its backward pass, and what the process holds."""
        arena.keep_at_most(0)
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
        seen = {cost_key(graph, op): run.observed[op.name] for op in with_joint(graph) if op.name in run.observed}
        if seen:
            self.shared.platform.cache.add(seen)  # by which parts are planned, whichever platform ran them
        self.shared.note(run.memory.high_water_bytes)
        self.platform.reset_high_water()


def _staying(ready: Ready, args: Sequence[object], run: Running) -> Iterator[str]:
    """Yield the storages of a run that stay in place from run to run: those of parameters."""
    leaves = ready.captured.batch_leaves
    return (name for name, leaf in leaves.items() if name in run.storages and isinstance(args[leaf], nn.Parameter))


def _end(ready: Ready, platform: Platform, run: Running, busy: ExitStack) -> None:
    """Let others have the platform of a run; a run that is not over lets go of everything."""
    with busy:
        try:
            if run.position < len(run.program.instructions):
                run.abandon()
        finally:
            if ready.is_closed:
                platform.forget(ready.program)


def returned(ready: Ready, run: Running) -> tuple[list[object], list[list[Tensor]]]:
    """Return the results of a part and the addends of gradients, as far as they are there by now (else None).

    What is there twice is one tensor, so that autograd sees that it is no leaf's own.
    """
    leaves, structure = ready.captured.returned.leaves, ready.captured.returned.structure
    names = dict.fromkeys(ready.program.results[leaf.number] for leaf in leaves if isinstance(leaf, GraphResult))
    there = {name: _there(name, ready, run) for name in names}
    found = [there[ready.program.results[leaf.number]] if isinstance(leaf, GraphResult) else leaf for leaf in leaves]
    results, addends, _ = pytree.tree_unflatten(found, structure)
    return results, addends


def _there(name: str, ready: Ready, run: Running) -> object:
    geometry = ready.program.geometry[name]
    (found,) = run.read([name]) if geometry.storage in run.storages or name in run.scalars else (None,)
    return found


def gradients(waiting: Waiting, arriving: Mapping[int, Tensor | None]) -> list[list[Tensor | None]]:
    """Run the backward pass; return the addends of the gradients of inputs."""
    ready, run = waiting.ready, waiting.run
    with waiting.ended_by_errors():
        run.receive(_arrived(ready, run, arriving))
        run.advance(len(run.program.instructions))
        _, found = returned(ready, run)
        waiting.complete()
    missing = {order for order, at in enumerate(ready.awaited) if arriving[at] is None}
    return [
        [
            None if on and on <= missing else item.clone() if is_borrowed or _is_added_to(item, items) else item
            for item, on, is_borrowed in zip(items, sources, borrowed, strict=True)
        ]
        for items, sources, borrowed in zip(found, ready.between.sources, ready.between.borrowed, strict=True)
    ]


def _is_added_to(item: Tensor, items: Sequence[Tensor]) -> bool:
    """Whether autograd must hold an addend alone: it then adds others to it in place, and the sum lies as in eager."""
    return len(items) > 1 and is_ambiguous(item)


def _arrived(ready: Ready, run: Running, gradients: Mapping[int, Tensor | None]) -> list[Tensor]:
    """Return what the hole returns, laid out as was captured: gradients that the program may write over.

    The run itself copies those with planned addresses there; a gradient that has not arrived is zero.
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


def _laid_out(gradient: Tensor | None, result: Result, home: torch.device) -> Tensor:
    like = result.geometry
    made = torch.empty_strided(like.shape, like.strides, dtype=like.dtype, device=home)
    return made.zero_() if gradient is None else fill(made, gradient)
