"""Which plans does a step have? One for each signature, made twice: from modelled costs, then from observed ones.

The overhead of the process (allocator waste, the objects of capture and plan) is what its high water shows above
the timeline's peak. Before a run has shown it, it is what the process holds by now beyond the baseline and the
tensors of the step, plus a share of what the step will hold. It is deducted from the budget before planning.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from statistics import mean
from time import perf_counter

import torch.utils._pytree as pytree
from torch import Tensor, nn

from outgrow.analysis.cost import Cost, cost_key, from_parts, neediest
from outgrow.errors import Infeasible
from outgrow.frontends.lowering.inductor import by_kernels
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.preparing.prepare import Prepared
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.tracing.capture import Captured, capture, captured_by, captured_from
from outgrow.frontends.tracing.signature import glance, signature
from outgrow.frontends.tracing.trace import Traced, trace
from outgrow.frontends.user.attributes import Overwritten, withheld
from outgrow.frontends.user.state import Training, held_tensors, local, read
from outgrow.frontends.within_budget import Demand, fitted
from outgrow.frontends.workers.workers import Workers, check_replaceable, one_by_one
from outgrow.ir.graph import Graph, Role
from outgrow.ir.machine import Machine
from outgrow.operators.parts import parts
from outgrow.remarks import remark
from outgrow.report.plans import PlanReport, PlansReport
from outgrow.runtime import arena
from outgrow.runtime.execute import Outcome
from outgrow.runtime.program import Program
from outgrow.runtime.recording import Held
from outgrow.runtime.resting import is_loaded

_SLACK_BYTES, _SLACK_SHARE = 8 << 20, 0.25
"""What a process may take beyond the overhead that a run has shown: the heap is never twice the same."""
_SURPRISE = 0.05
_SURPRISES = 2
"""A run that differs from its prediction by more than this share is planned again, this many times at most."""
_LOOKED_AT = 3
"""How many runs are timed op by op on a device that the host does not wait for."""
_MOST_ENTRIES = 32
"""A step keeps at most this many entries, and forgets the one that was not used for the longest."""
_MANY = 5
_ANEW = (
    "The step has been captured and planned {} times for batches of the same shapes, which takes time: something else "
    "changes from call to call, {}. Pass it as a tensor, or keep it in a buffer."
)
_SOMETHING = "such as a number among the arguments, an attribute of a module, or a variable that the step reads"
_COUNTED = (
    "The step changes `{}`, which may be part of what it does, so every call is captured and planned anew, which takes "
    "time. Change it after the step, or pass what depends on it as a tensor."
)
_FORGOTTEN = (
    "The step has been called with more shapes than outgrow keeps plans for ({}). One that is forgotten is captured "
    "and planned again when it comes back. Pad batches to fewer shapes, such as multiples of 64."
)
_UNTRAINED = (
    "The step changes no parameter, so nothing is trained. Does it call optimizer.step(), while there are gradients?"
)
_ROOMY, _ROOMY_BYTES = 2, 64 << 20
"""Room is ample if the capacity is at least twice the peak plus 64 MiB. Then the user's function is called as it is:
Python may hold tensors longer than the graph, and the heap may waste what it likes."""


@dataclass(eq=False)
class Entry:
    """What is kept for one signature: the captured step, its plan and program, and how often it ran.

    `shapes` are those of the batch, `new_floor_bytes` the floor before a run had shown the overhead, with a margin for
    other processes, and `seconds` what capturing and planning took in all. `last_call` is the number of the call that
    it served last. `observed` says that a program of it has run, which shows what ops cost, `noted` is what the program
    holds, if it may run again from that (`runtime.repeated`), and `has_exceeded` says that the user's own function took
    more than the budget, and is not trusted again.
    """

    captured: Captured
    prepared: Prepared
    program: Program
    shapes: tuple[tuple[int, ...], ...] = ()
    new_floor_bytes: int = 0
    seconds: float = 0.0
    last_call: int = 0
    runs: int = 0
    process_bytes: int = 0
    settled: bool = False
    surprises: int = 0
    runs_as_written: bool = False
    observed: bool = False
    has_exceeded: bool = False
    noted: Held | None = None


@dataclass(frozen=True)
class Ample:
    """An entry whose step runs as it is written, in ample room, and what must not change for that.

    That is what is quickly seen (`glance`), which parameters are trained, and what the process held when the call
    began, which shows new layers and other types.
    """

    entry: Entry
    seen: Hashable
    trained: tuple[tuple[nn.Parameter, bool], ...]
    held_bytes: int

    @staticmethod
    def of(entry: Entry, seen: Hashable, training: Training, held_bytes: int) -> "Ample":
        """Return the record to compare later calls with, from the state at the first one."""
        parameters = (parameter for model in training.models for parameter in model.parameters())
        return Ample(entry, seen, tuple((item, item.requires_grad) for item in parameters), held_bytes)

    def still_holds(self, seen: Hashable, held_bytes: int) -> bool:
        """Whether the entry is right for a call with this `glance`, before which the process holds `held_bytes`."""
        return (
            self.entry.runs_as_written
            and self.seen == seen
            and all(parameter.requires_grad is flag for parameter, flag in self.trained)
            and held_bytes <= self.held_bytes + _SLACK_BYTES
        )


@dataclass(frozen=True)
class Served:
    """The entry that is right for a call, and the tensors of the call by input storage, if they were looked for."""

    entry: Entry
    tensors: Mapping[str, Tensor] | None = None


class Entries:
    """The entries of one step, and what was learned from running them.

    `baseline_bytes` is what the process takes for other things than the step.
    """

    def __init__(
        self,
        step: Callable[..., object],
        training: Training,
        settings: Settings,
        platform: Platform,
        baseline_bytes: int,
        progress: Callable[[str, float], None],
        workers: Workers | None = None,
    ) -> None:
        self.workers = workers
        self._step, self._training, self._settings, self._platform = step, training, settings, platform
        self._baseline_bytes, self._progress = baseline_bytes, progress
        self._is_compiled = settings.kernels != "eager"
        self._by_signature: dict[Hashable, list[Entry]] = {}
        self._overwritten: dict[Overwritten, None] = {}
        self._calls = self._dropped = 0
        self._machine: Machine | None = None
        self._overhead_bytes: int | None = None
        self._ample: Ample | None = None

    def ready(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Served:
        """Return the entry of this call, captured and planned, and planned again once costs have been observed."""
        ample = self._ample
        if ample is not None and ample.still_holds(self._glance(args, kwargs), self._platform.process_bytes()):
            self._calls += 1
            ample.entry.last_call = self._calls
            return Served(ample.entry)
        served, self._ample = self._examined(args, kwargs), None
        entry = served.entry
        if entry.runs_as_written and entry.settled:
            held = self._platform.process_bytes()
            self._ample = Ample.of(entry, self._glance(args, kwargs), self._training, held)
        return served

    def _glance(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
        return glance(self._training.models, self._training.optimizers, args, kwargs)

    def _examined(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Served:
        key = self._signature(args, kwargs)
        candidates = self._by_signature.get(key, [])
        self._calls += 1
        found = self._serving(candidates, args, kwargs)
        if found is None and _own_what_was_loaded(self._training):
            found = self._serving(candidates, args, kwargs)
        if found is not None:
            entry = found.entry
            entry.last_call = self._calls
            if entry.runs > 0 and not entry.settled:
                self._plan_again(entry, args, kwargs)
            return found
        begin = perf_counter()
        self._progress("capture", 0.0)
        captured = self._captured(args, kwargs)
        if self._is_compiled:
            self._progress("compile", 0.0)
        captured = by_kernels(captured, self._settings.kernels)
        _remark_untrained(captured.graph, self._training)
        self._platform.clear_away()
        has_exceeded = any(other.has_exceeded for other in candidates)
        entry = self._planned(captured, args, kwargs, is_new=True, may_run_as_written=not has_exceeded)
        entry.has_exceeded = has_exceeded
        entry.shapes = tuple(tuple(x.shape) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor))
        entry.seconds, entry.last_call = perf_counter() - begin, self._calls
        if captured.overwritten:
            self._overwritten |= dict.fromkeys(captured.overwritten)
            key = self._signature(args, kwargs)
        self._warn_of_changed(entry)
        self._by_signature.setdefault(key, []).append(entry)
        self._warn_of_many(entry)
        self._drop_oldest()
        return Served(entry)

    def _signature(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
        """Return the signature of a call; what is in attributes that captured steps overwrite makes no difference."""
        with withheld(self._overwritten):
            return signature(self._step, self._training.models, self._training.optimizers, args, kwargs)

    @property
    def _kept(self) -> list[Entry]:
        return [entry for found in self._by_signature.values() for entry in found]

    def _warn_of_changed(self, entry: Entry) -> None:
        """Say, once, if a step changes a number outside, so that it is captured anew in every call."""
        planned = [other for other in (entry, *self._kept) if not other.runs_as_written and other.captured.changed]
        if planned == [entry]:
            remark(_COUNTED.format(entry.captured.changed[0].location.name))

    def _warn_of_many(self, entry: Entry) -> None:
        """Say, once, if a step is captured over and over for batches of the same shapes."""
        alike = [other for other in self._kept if other.shapes == entry.shapes]
        if len(alike) == _MANY and not entry.captured.changed:  # of what it changes itself it has been told
            found = next((name for other in alike if (name := other.captured.outside.other()) is not None), None)
            remark(_ANEW.format(_MANY, _SOMETHING if found is None else f"`{found}`"))

    def _captured(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Captured:
        """Return the step as a graph: all of it, or the part of this worker."""
        if self.workers is None:
            return capture(self._step, self._training.models, self._training.optimizers, args, kwargs)
        workers, training, leaves = self.workers, self._training, pytree.tree_leaves((tuple(args), dict(kwargs)))
        check_replaceable(training)

        def traced_anew(living: Sequence[object]) -> Traced:
            with one_by_one(training):
                return trace(self._step, training, args, kwargs, living)

        def part(traced: Traced) -> Captured:
            own = workers.divided(traced, training, leaves, self._settings.budget_bytes)
            return replace(captured_from(own, leaves), spreads=workers.spreads)

        captured = captured_by(self._step, traced_anew, part)
        workers.cut(training)
        return captured

    def floor_bytes(self, entry: Entry) -> int:
        """Return the smallest budget with which a new process trains on such batches, from its first step on.

        It is no more than the budget, under which all of them have plans.
        """
        floors = (other.new_floor_bytes for other in self._kept if other.shapes == entry.shapes)
        floor = max(floors, default=entry.new_floor_bytes)
        return min(floor, self._settings.budget_bytes)

    def report(self) -> PlansReport:
        """Return which plans there are, and what they cost."""
        rows = (
            PlanReport(entry.shapes, len(entry.captured.graph.ops), entry.runs_as_written, entry.runs, entry.seconds)
            for entry in self._kept
        )
        return PlansReport(tuple(rows), self._dropped)

    def _drop_oldest(self) -> None:
        """Forget the entry that was not used for the longest, if there is one too many."""
        entries = [(entry.last_call, key, entry) for key, found in self._by_signature.items() for entry in found]
        if len(entries) > _MOST_ENTRIES:
            _, key, entry = min(entries, key=itemgetter(0))
            self._by_signature[key].remove(entry)
            self._platform.forget(entry.program)
            if not self._by_signature[key]:
                del self._by_signature[key]
            self._dropped += 1
            if self._dropped == 1:
                remark(_FORGOTTEN.format(_MOST_ENTRIES))

    def _serving(
        self, candidates: Sequence[Entry], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Served | None:
        """Return the first of the entries that is right for this call."""
        return next((found for entry in candidates if (found := self._served(entry, args, kwargs)) is not None), None)

    def _served(self, entry: Entry, args: Sequence[object], kwargs: Mapping[str, object]) -> Served | None:
        """Return an entry of the same signature if it is right for this call, and can move what it wants to move.

        The user's own function is right for all calls: hyper-parameters change what it takes by little beside its room.
        """
        if entry.runs_as_written:
            return Served(entry)
        captured, lasting = entry.captured, entry.program.lasting
        if not (captured.outside.still_hold() and captured.guards_hold(self._training)):
            return None
        tensors = captured.tensors(self._training, args, kwargs)
        if not all(item.still_lies(tensors) for item in captured.found):
            return None
        platform = self._platform
        moves = all(platform.may_leave(captured.graph, name, tensors[name]) for name in lasting & tensors.keys())
        return Served(entry, tensors) if moves else None

    def _planned(
        self,
        captured: Captured,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        is_new: bool,
        may_run_as_written: bool = True,
    ) -> Entry:
        self._progress("plan", 0.0)
        tensors = captured.tensors(self._training, args, kwargs)
        self._platform.make_room(captured, tensors)
        if self._machine is None:
            self._machine = self._platform.machine()
        demand = Demand(
            platform=self._platform,
            machine=self._machine,
            planner=self._settings.planner,
            captured=captured,
            known=self._platform.known(captured, self._progress),
            fixed=self._platform.fixed(captured, tensors),
            overhead_within=partial(self._overhead, captured, tensors, is_new=is_new),
            progress=self._progress,
        )
        makes_state = _makes_state(captured.graph)
        try:
            prepared, program = fitted(demand, self._settings.budget_bytes, is_new=is_new, is_thorough=not makes_state)
        except Infeasible as refusal:
            refusal.makes_state = makes_state
            raise
        capacity = prepared.plan.budget.capacity_bytes
        is_roomy = prepared.in_core.peak_bytes * _ROOMY + _ROOMY_BYTES <= capacity
        runs_as_written = is_roomy and may_run_as_written and not self._is_compiled and self.workers is None
        if not runs_as_written:
            self._platform.make_ready(program, tensors, capacity)
            self._platform.install()
        floor = prepared.plan.floor_bytes + self._platform.slack_bytes if is_new else 0
        return Entry(captured, prepared, program, runs_as_written=runs_as_written, new_floor_bytes=floor)

    def come_home(self) -> None:
        """Bring what rests in the next tier between steps back to memory."""
        self._platform.come_home(self._training)

    def _plan_again(self, entry: Entry, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Plan from observed costs; if there is no such plan, the old one stays if it kept the budget."""
        begin = perf_counter()
        may_run_as_written = not entry.has_exceeded
        try:
            again = self._planned(entry.captured, args, kwargs, is_new=False, may_run_as_written=may_run_as_written)
        except Infeasible:
            if entry.process_bytes > self._settings.budget_bytes:
                raise
            entry.settled = True
            return
        finally:
            entry.seconds += perf_counter() - begin
        entry.settled = True
        self._platform.forget(entry.program)
        entry.prepared, entry.program = again.prepared, again.program
        entry.runs_as_written, entry.noted = again.runs_as_written, None

    def _overhead(self, captured: Captured, tensors: Mapping[str, Tensor], within: int, *, is_new: bool) -> int:
        """The overhead that a run has shown; for a new step, at least what is to be expected within a budget."""
        shown = 0
        if self._overhead_bytes is not None:
            shown = self._overhead_bytes + max(self._platform.slack_bytes, int(self._overhead_bytes * _SLACK_SHARE))
        if not is_new:
            return shown
        going = [read(slot, self._training) for slot in captured.stale]
        known = [*tensors.values(), *(local(gradient) for gradient in going if isinstance(gradient, Tensor))]
        platform = self._platform
        held = self._baseline_bytes + platform.held_bytes(known) + platform.resting_bytes()
        now = max(0, platform.process_bytes() - held)
        return max(shown, now + captured.copied_bytes + platform.unseen_bytes(captured.graph, within))

    def looks_at(self, entry: Entry) -> bool:
        """Whether the run that comes next, or came last, shows when its operators ran."""
        return self._platform.observes or entry.runs < _LOOKED_AT

    def note(self, entry: Entry, outcome: Outcome, process: int) -> None:
        """Learn from a run: costs of ops that were observed, and what the process took beyond the timeline's peak."""
        entry.observed = True
        entry.process_bytes = process
        tells = self._platform.observes or (self.looks_at(entry) and not outcome.recording.waits_for_host)
        seen = _costs_seen(entry, outcome) if tells else {}
        if seen:
            self._platform.cache.add(seen)
        entry.settled = not seen
        entry.runs += 1
        if not self._platform.observes:
            entry.noted = entry.noted or outcome.recording.held
        if self._has_shown(process - self._platform.held_at_most(entry.program, outcome.recording)):
            entry.settled = entry.settled and process <= self._settings.budget_bytes

    def note_as_written(self, entry: Entry, process: int) -> None:
        """Learn from a run of the user's own function; once it takes more than the budget, planned steps replace it."""
        entry.runs += 1
        entry.process_bytes = process
        entry.settled = process <= self._settings.budget_bytes
        if not entry.settled:
            self._has_shown(process - entry.prepared.in_core.peak_bytes)
            entry.runs_as_written, entry.has_exceeded = False, True

    def _has_shown(self, overhead_bytes: int) -> bool:
        """Note the overhead of a run; whether it is more than was seen before."""
        is_more = self._overhead_bytes is None or overhead_bytes > self._overhead_bytes
        if is_more:
            self._overhead_bytes = max(0, overhead_bytes)
        return is_more

    def close(self) -> None:
        """Give the disk space back, and memory that rests; entries take both anew when they run."""
        self.come_home()
        self._platform.close()


def _costs_seen(entry: Entry, outcome: Outcome) -> dict[str, Cost]:
    """Return what a run tells of costs, by key: means over the ops that share one.

    Usually it tells of the ops that were observed. If all costs were known and the run still took another time than
    predicted, it tells of all ops: known costs may be of another day, or of memory that was fresh.
    """
    seen = dict(outcome.observed)
    surprise = abs(outcome.trace.seconds - entry.prepared.plan.predicted.seconds) / outcome.trace.seconds
    if not seen and entry.surprises < _SURPRISES and surprise > _SURPRISE:
        entry.surprises += 1
        seen = entry.prepared.costs_in(outcome.trace)
    if not seen:
        return {}
    grouped: dict[str, list[Cost]] = {}
    for op in entry.captured.graph.ops:
        own = [seen[part.name] for part in parts(op) if part.name in seen]
        if own and len(own) == len(parts(op)):
            seen[op.name] = from_parts(own)
        if op.name in seen:
            grouped.setdefault(cost_key(entry.captured.graph, op), []).append(seen[op.name])
    return {key: neediest(mean(cost.seconds for cost in costs), costs) for key, costs in grouped.items()}


def _remark_untrained(graph: Graph, training: Training) -> None:
    """Warn of a step that runs nothing, or leaves neither new parameters nor gradients for its optimizers."""
    if not graph.ops:
        remark("The step runs no operator of torch, so nothing is trained.")
        return
    roles = {graph.storages[name].role for names in graph.written_at for name in names if name in graph.outliving}
    if training.optimizers and not roles & {Role.PARAMETER, Role.GRADIENT}:
        remark(_UNTRAINED)


def _makes_state(graph: Graph) -> bool:
    """Whether a step makes state of an optimizer: then the next step, which finds it, is another one."""
    return any(graph.storages[name].role is Role.OPTIMIZER for name in graph.kept & graph.born_at.keys())


def _own_what_was_loaded(training: Training) -> bool:
    """Give memory that can be moved to each large tensor that `torch.load` made; return whether there was any.

    The tensor object stays the same. A tensor whose memory others see, by a view or a NumPy array, is left alone.
    """
    found = False
    for tensor in map(local, held_tensors(training)):
        is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes >= arena.LEAST_BYTES
        if is_whole and is_loaded(tensor.untyped_storage()):
            tensor.data = tensor.detach().clone()
            found = True
    return found
