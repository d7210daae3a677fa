"""What of a loop that cannot be captured whole? Dynamo cuts it into parts, and each part keeps within the budget.

    torch.compile(model, backend="outgrow", options={"memory_budget": "8GiB"})

A part is a forward pass; its backward pass comes later, when autograd asks for it. Both are captured as one graph with
a hole in it, the op `elsewhere`: it reads what the part returns, and returns the gradients that arrive. What other
parts, the loss and the optimizer need meanwhile is its workspace. So one plan moves or builds again what waits between
the two passes, and the program stops before the hole and goes on after it.

    forward   instructions up to `elsewhere`, which give the results
    backward  the gradients enter; the other instructions give those of the part's inputs

Parts of one budget share it: whatever a process holds besides a part's own inputs, what waits for the backward of
other parts included, is overhead when the part is planned. Most of what is then left is for others, until a part that
waits alone has seen how much they take. Parameters, their gradients and the optimizer's state stay on the device.
"""

import gc
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard
from weakref import finalize

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._dynamo.external_utils import wrap_inline
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from outgrow.analysis.cost import Cost
from outgrow.analysis.cost import signature as cost_signature
from outgrow.errors import Infeasible, Uncapturable
from outgrow.frontends import calls
from outgrow.frontends.capture import Captured, Result, capture
from outgrow.frontends.devices import require_cpu
from outgrow.frontends.inductor import by_kernels
from outgrow.frontends.lower import lower
from outgrow.frontends.measure import CostCache, open_cost_cache, this_machine
from outgrow.frontends.prepare import Prepared, prepare, unseen_overhead_bytes
from outgrow.frontends.settings import Settings
from outgrow.frontends.signature import signature
from outgrow.frontends.state import BatchSlot, Training
from outgrow.frontends.warmup import warm_up
from outgrow.ir.graph import Op
from outgrow.ir.machine import Machine
from outgrow.plan import Budget
from outgrow.runtime import arena
from outgrow.runtime.execute import Progress, Run
from outgrow.runtime.heap import Heap
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.memory import MAPPED_BYTES, clear_away, fix_mmap_threshold, trim
from outgrow.runtime.process import high_water_bytes, process_bytes, reset_high_water
from outgrow.runtime.program import Call, Geometry, Program
from outgrow.runtime.resting import resident_bytes
from outgrow.runtime.spill import Spill

_OPTIONS = {"memory_budget", "offload_dir", "disk_budget", "planner", "kernels"}
_ELSEWHERE = "outgrow.elsewhere.default"
_SHARES = (0.9, 0.75, 0.5, 0.25, 0.0)
"""Shares of what is left that a part leaves to others, tried in this order."""
_SLACK_BYTES = 16 << 20
_NOBODY = Training((), ())
_MOST_KINDS = 32
"""A part that sees ever other inputs forgets those that it has not seen for the longest."""

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_LIBRARY.define(
    "elsewhere(Tensor[] results, int[] differentiable) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,)
)
_LIBRARY.impl(
    "elsewhere",
    lambda results, differentiable: [torch.empty_like(results[at]) for at in differentiable],
    "CompositeExplicitAutograd",
)


@dataclass
class Shared:
    """What the parts of one budget share; `pauses` counts how often one of them began to wait."""

    settings: Settings
    baseline_bytes: int
    machine: Machine
    costs: CostCache = field(default_factory=open_cost_cache)
    pauses: int = 0


_SHARED: dict[Hashable, Shared] = {}


def backend(
    module: fx.GraphModule, _example_inputs: Sequence[object], *, options: Mapping[str, object] | None = None
) -> Callable[..., object]:
    """Return what runs a part that Dynamo found; a backend of `torch.compile`.

    `options` are `memory_budget` (bytes, or a string such as "8GiB"), and if need be `offload_dir`, `disk_budget`,
    `planner` and `kernels`, all as for `outgrow.compile`. Raises `TypeError` for other options, `InvalidQuantity` for a
    size that is none, `TierFailure` for a folder that cannot be used; when it runs `Infeasible` below the floor, and
    `Uncapturable`.
    """
    return Part(module, _checked(dict(options or {})))


def compiled_in_place(settings: Settings) -> Callable[[nn.Module], None]:
    """Return a function that lets a module run by parts from then on."""
    settings.require_disk()

    def part(module: fx.GraphModule, _example_inputs: Sequence[object]) -> Part:
        return Part(module, settings)

    def compiled(module: nn.Module) -> None:
        # Dynamo skips the frames of torch.nn's own modules unless they are wrapped; `module.compile` does not wrap them
        module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl), backend=part)

    return compiled


def _checked(options: Mapping[str, object]) -> Settings:
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown or "memory_budget" not in options:
        raise TypeError(
            f"options of the backend are {', '.join(sorted(_OPTIONS))}, of which memory_budget is needed; "
            f"given: {', '.join(sorted(options)) or 'none'}"
        )
    settings = Settings.of(**options)  # pyright: ignore[reportArgumentType]
    settings.require_disk()
    return settings


def _shared(settings: Settings) -> Shared:
    """Return what the parts of one budget share; the first that runs says what the process held before the model."""
    if settings not in _SHARED:
        baseline = warm_up(settings.kernels) - resident_bytes(_trained())
        _SHARED[settings] = Shared(settings, baseline, this_machine(settings.folder))
    return _SHARED[settings]


def _trained() -> list[Tensor]:
    """Return what all models and optimizers of the process hold, and every other tensor that wants a gradient."""
    found: list[object] = []
    for item in gc.get_objects():
        if issubclass(type(item), nn.Module):
            found += vars(item).get("_buffers", {}).values()
        elif issubclass(type(item), Optimizer):
            found += pytree.tree_leaves(dict(item.state))
        elif _is_plain(item) and item.requires_grad:
            found += [item, item.grad if item.is_leaf else None]
    return [item for item in found if _is_plain(item)]


def _is_plain(item: object) -> TypeGuard[Tensor]:
    return type(item) in (Tensor, nn.Parameter) and item.layout is torch.strided  # pyright: ignore[reportAttributeAccessIssue]


def budgets() -> tuple[Shared, ...]:
    """Return what the parts of each budget share, for every budget that a part has run under."""
    return tuple(_SHARED.values())


def forget() -> None:
    """Drop compiled parts, Dynamo's and ours; what the process holds when the next one runs is its baseline."""
    torch._dynamo.reset()
    _SHARED.clear()


@dataclass
class Ready:
    """A part for inputs of some kind: captured, planned and lowered.

    `hole` is the number of the instruction that stands for everything else, `open` are the results that it hands
    gradients for, and `needed_bytes` what everything else was seen to take. `idle` are spill files that no run uses. It
    is settled once it was planned from costs that a run has shown.
    """

    captured: Captured
    prepared: Prepared
    program: Program
    hole: int | None
    open: tuple[int, ...]
    overhead_bytes: int
    runs: int = 0
    needed_bytes: int | None = None
    is_settled: bool = False
    is_closed: bool = False
    idle: list[Spill] = field(default_factory=list[Spill])

    def give_back(self, spill: Spill) -> None:
        """Keep a spill file for the next run, if there is one."""
        if self.is_closed:
            spill.close()
        else:
            self.idle.append(spill)

    def close(self) -> None:
        """Give the disk space back, that of runs which go on when they end."""
        self.is_closed = True
        while self.idle:
            self.idle.pop().close()


class Part:
    """A forward pass and its backward pass, planned together for each kind of inputs when it is first called."""

    def __init__(self, module: fx.GraphModule, settings: Settings) -> None:
        self._module, self._settings = _with_checkpoints(module), settings
        self._ready: dict[Hashable, Ready] = {}

    def __call__(self, *args: object) -> object:
        """Run the forward pass; with gradients, the results know their backward pass."""
        ready = self._prepared(args)
        if ready.hole is not None:
            return tuple(_Pair.apply(self, ready, *args))
        run = self.begun(ready, args)
        completed = False
        try:
            run.advance(len(ready.program.instructions))
            completed = True
        finally:
            if not completed:
                run.abandon()
        returned, _ = _returned(ready, run)
        self.ended(ready, run)
        return returned

    @property
    def _shared(self) -> Shared:
        return _shared(self._settings)

    def _prepared(self, args: Sequence[object]) -> Ready:
        """Return the part for these inputs, planned again once more is known of costs or more is held besides."""
        key = signature(self._module, (), (), args, {})
        ready = self._ready.get(key)
        others = self._others(args)
        if ready is None:
            captured = capture(_joint(self._module, args), (), (), [_plain(arg) for arg in args])
            _check_writes(captured, args)
            require_cpu(captured.device, "a part of torch.compile under a budget")
            captured = by_kernels(captured, self._settings.kernels)
            clear_away()
            self._ready[key] = self._planned(captured, others, None)
            self._drop_oldest()
        elif (ready.runs > 0 and not ready.is_settled) or others > ready.overhead_bytes + _SLACK_BYTES:
            again = self._planned(ready.captured, max(others, ready.overhead_bytes), ready.needed_bytes)
            again.runs, again.is_settled = ready.runs, True
            ready.close()
            self._ready[key] = again
        self._ready[key] = self._ready.pop(key)  # the last is what was asked for last
        return self._ready[key]

    def _drop_oldest(self) -> None:
        """Forget the kind of inputs that was not seen for the longest, if there is one too many."""
        if len(self._ready) > _MOST_KINDS:
            self._ready.pop(next(iter(self._ready))).close()

    def _others(self, args: Sequence[object]) -> int:
        """Bytes that the process holds beyond its baseline and the inputs of this call."""
        baseline = self._shared.baseline_bytes  # asked for first: where it is not known yet, garbage is cleared away
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        return max(0, process_bytes() - arena.resting_bytes() - baseline - resident_bytes(tensors))

    def _planned(self, captured: Captured, others: int, needed: int | None) -> Ready:
        """Plan with as much left for everything else as it needs; while that is unknown, with a share of what is left.

        Raises `Infeasible` if the part has no plan although nothing is left for others.
        """
        graph, budget_bytes = captured.graph, self._settings.budget_bytes
        budget = Budget(budget_bytes, others + unseen_overhead_bytes(graph, budget_bytes))
        hole = next((op for op in graph.ops if op.operator == _ELSEWHERE), None)
        left = [int(share * max(0, budget.capacity_bytes)) for share in _SHARES]
        if needed is not None:
            left.insert(0, needed + _SLACK_BYTES)
        prepared = self._prepared_beside(captured, budget, hole, [0] if hole is None else left)
        arena.install()
        fix_mmap_threshold(MAPPED_BYTES)
        program = lower(prepared.derived)
        trim()
        return Ready(captured, prepared, program, _at(program, hole), _open(hole), others, needed_bytes=needed)

    def _prepared_beside(self, captured: Captured, budget: Budget, hole: Op | None, left: Sequence[int]) -> Prepared:
        """Plan with the first of these bytes left for everything else that allows a plan; the last one must."""
        shared, graph = self._shared, captured.graph
        known = dict(shared.costs.known)
        fixed = frozenset(item.storage for item in captured.inputs)
        if hole is not None:
            known[cost_signature(graph, hole)] = Cost(0.0, left[0], measured=True)
        try:
            return prepare(
                graph,
                known,
                shared.machine,
                budget,
                planner=self._settings.planner,
                fixed=fixed,
                prove=False,
                keep=True,
            )
        except Infeasible:
            if len(left) == 1:
                raise
        return self._prepared_beside(captured, budget, hole, left[1:])

    def begun(self, ready: Ready, args: Sequence[object]) -> Run:
        """Return a run of the part on its inputs."""
        call = calls.bind(ready.captured, ready.program, _NOBODY, [_plain(arg) for arg in args], {})
        spill = None
        if ready.program.scratch_bytes:
            spill = ready.idle.pop() if ready.idle else Spill(OnDisk(self._settings.folder), self._settings.disk_bytes)
            spill.reserve(ready.program.scratch_bytes, 0)
        capacity = ready.prepared.plan.budget.capacity_bytes
        observe = ready.runs == 0
        run = calls.made_ready(call, ready.prepared.costs, spill, Heap(), capacity, Progress(), observe=observe)
        run.start()
        return run

    def ended(self, ready: Ready, run: Run) -> None:
        """Keep the costs of ops that were observed, and the spill file for the next run."""
        arena.keep_at_most(0)
        ready.runs += 1
        graph = ready.captured.graph
        seen = {cost_signature(graph, op): run.observed[op.name] for op in graph.ops if op.name in run.observed}
        if seen:
            self._shared.costs.add(seen)
        if run.spill is not None:
            ready.give_back(run.spill)

    def waits(self, waiting: "_Waiting") -> None:
        """Note that a run waits for its backward pass, and what the process holds."""
        arena.keep_at_most(0)
        self._shared.pauses += 1
        waiting.pause = self._shared.pauses
        reset_high_water()
        waiting.held_bytes = process_bytes()

    def goes_on(self, ready: Ready, waiting: "_Waiting") -> None:
        """Note how much everything else took, if no other part ran meanwhile."""
        if waiting.pause == self._shared.pauses:
            needed = max(0, high_water_bytes() - waiting.held_bytes)
            ready.needed_bytes = max(needed, ready.needed_bytes or 0)


class _Waiting:
    """A run between its forward and its backward pass; if nobody wants the latter, the run ends with this object."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pause = 0
        self.held_bytes = 0
        finalize(self, run.abandon)


class _Pair(torch.autograd.Function):
    """The forward pass runs the program up to the hole, the backward pass the rest of it."""

    @staticmethod
    def forward(ctx: Any, part: Part, ready: Ready, *args: object) -> tuple[object, ...]:
        """Return what the part returns."""
        assert ready.hole is not None, "a part with gradients has a hole"
        run = part.begun(ready, args)
        waiting = _Waiting(run)
        run.advance(ready.hole)
        returned, _ = _returned(ready, run)
        closed = [item for at, item in enumerate(returned) if isinstance(item, Tensor) and at not in ready.open]
        ctx.mark_non_differentiable(*closed)
        ctx.part, ctx.ready, ctx.waiting, ctx.inputs = part, ready, waiting, args
        ctx.versions = [_version(arg) for arg in args]
        part.waits(waiting)
        return tuple(returned)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[object, ...]:
        """Return the gradients of the part's inputs."""
        if ctx.waiting is None:
            raise RuntimeError("This backward pass has run already, and outgrow keeps nothing for a second one.")
        waiting, ready, part, inputs = ctx.waiting, ctx.ready, ctx.part, ctx.inputs
        ctx.waiting, ctx.inputs = None, ()
        if [_version(arg) for arg in inputs] != ctx.versions:
            raise RuntimeError("An input of a compiled part was changed in place before the backward pass.")
        part.goes_on(ready, waiting)
        run = waiting.run
        hole = run.program.instructions[run.position]
        assert isinstance(hole, Call), "a run waits at a call"
        wanted = [run.program.geometry[result.value] for result in hole.results if result is not None]
        run.receive([_laid_out(gradients[at], like) for at, like in zip(ready.open, wanted, strict=True)])
        run.advance(len(run.program.instructions))
        _, found = _returned(ready, run)
        part.ended(ready, run)
        rest = iter(found)
        return (None, None, *(next(rest) if isinstance(arg, Tensor) and arg.requires_grad else None for arg in inputs))


def _with_checkpoints(module: fx.GraphModule) -> fx.GraphModule:
    """Let regions of `torch.utils.checkpoint`, which Dynamo keeps as one call each, run twice as in eager."""
    for node in module.graph.find_nodes(op="call_function", target=tag_activation_checkpoint):
        node.target, node.kwargs = _checkpointed, {}
    module.recompile()
    return module


def _checkpointed(region: Callable[..., object], *args: object) -> object:
    """Run a region with what needs no gradient, buffers that it counts in for one, as a part of the region."""
    wanted = [at for at, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad]

    def inner(*given: object) -> object:
        filled = dict(enumerate(args)) | dict(zip(wanted, given, strict=True))
        return region(*filled.values())

    return checkpoint(inner, *(args[at] for at in wanted), use_reentrant=False)


def _joint(module: fx.GraphModule, args: Sequence[object]) -> Callable[..., object]:
    """Return the forward and backward pass of a part as one function of its inputs, with the hole in between."""
    wanted = [isinstance(arg, Tensor) and arg.requires_grad and torch.is_grad_enabled() for arg in args]

    def joint(*given: Any) -> tuple[list[object], list[object]]:
        primals = [
            item.detach().requires_grad_() if is_wanted else item for item, is_wanted in zip(given, wanted, strict=True)
        ]
        results = list(module(*primals))
        differentiable = [at for at, item in enumerate(results) if isinstance(item, Tensor) and item.requires_grad]
        if not differentiable:
            return results, []
        tensors = [item.detach() if isinstance(item, Tensor) else torch.empty(0) for item in results]
        arriving = torch.ops.outgrow.elsewhere(tensors, differentiable)
        found = torch.autograd.grad(
            [results[at] for at in differentiable],
            [item for item, is_wanted in zip(primals, wanted, strict=True) if is_wanted],
            arriving,
            allow_unused=True,
        )
        return [item.detach() if isinstance(item, Tensor) else item for item in results], list(found)

    return joint


def _check_writes(captured: Captured, args: Sequence[object]) -> None:
    """Refuse a part that writes over an input whose gradient is wanted: the caller's graph would not know."""
    graph = captured.graph
    written = {name for op in graph.ops for name in graph.written(op)}
    for item in captured.inputs:
        if item.storage in written and isinstance(item.slot, BatchSlot):
            arg = args[item.slot.leaf]
            if isinstance(arg, Tensor) and arg.requires_grad:
                raise Uncapturable(
                    f"a compiled part writes over its input of shape {tuple(arg.shape)}, whose gradient is wanted; "
                    "write the operation out of place (inplace=False)"
                )


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


def _at(program: Program, hole: Op | None) -> int | None:
    """Return the number of the instruction that an op became."""
    if hole is None:
        return None
    found = (at for at, item in enumerate(program.instructions) if isinstance(item, Call) and item.name == hole.name)
    return next(found)


def _open(hole: Op | None) -> tuple[int, ...]:
    """Return the numbers of the results for which gradients arrive."""
    numbers = () if hole is None else hole.arguments[1]
    assert isinstance(numbers, tuple), "the operator takes a list"
    return tuple(number for number in numbers if isinstance(number, int))


def _laid_out(gradient: Tensor, like: Geometry) -> Tensor:
    """Return a copy of a gradient, laid out as was captured: the program may write over it."""
    return torch.empty_strided(like.shape, like.strides, dtype=like.dtype, device=gradient.device).copy_(gradient)


def _plain(arg: object) -> object:
    return arg.detach() if isinstance(arg, Tensor) else arg


def _version(arg: object) -> int:
    return arg._version if isinstance(arg, Tensor) else 0
