"""How is a step planned? Guided by its own runs: from modelled costs at first, then from what the runs have shown.

They show what ops cost, and the overhead of the process (allocator waste, the objects of capture and plan), which is
what its high water shows above the timeline's peak. Before a run has shown it, it is what the process holds by now
beyond the baseline and the tensors of the step, plus a share of what the step will hold. It is deducted from the budget
before planning.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

from torch import Tensor

from outgrow.analysis.cost import Cost, cost_key, from_parts, neediest
from outgrow.errors import Infeasible
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.preparing.prepare import Prepared
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.user.state import Training, local, read
from outgrow.frontends.within_budget import Demand, fitted
from outgrow.ir.graph import Graph, Role
from outgrow.ir.machine import Machine
from outgrow.operators.parts import parts
from outgrow.remarks import remark
from outgrow.runtime.execute import Outcome
from outgrow.runtime.program import Program
from outgrow.runtime.recording import Held, Recording
from outgrow.runtime.resting import extent_of
from outgrow.units import format_bytes

SLACK_BYTES = 8 << 20
"""What a process may take more from call to call: the heap is never twice the same."""
_SLACK_SHARE = 0.25
"""The overhead that a run has shown may grow by this share."""
_SURPRISE = 0.05
_SURPRISES = 2
"""A run that differs from its prediction by more than this share is planned again, this many times at most."""
_LOOKED_AT = 3
"""How many runs are timed op by op on a device that the host does not wait for."""
_FORGIVEN = (
    "The process took {} in a step, more than its budget of {}, by memory that is free again. The plan, which kept the "
    "budget before, goes on; if the next step exceeds it too, it is refused. Does another thread take memory meanwhile?"
)
_LATER = "Later steps may need more: `outgrow plan` says how much."
"""Which find the state of an optimizer that this one makes."""
_ROOMY, _ROOMY_BYTES = 2, 64 << 20
"""Room is ample if the capacity is at least twice the peak plus 64 MiB. Then the user's function is called as it is:
Python may hold tensors longer than the graph, and the heap may waste what it likes."""


@dataclass(frozen=True)
class Runnable:
    """A plan and its program, or the user's own function, which runs instead where room is ample."""

    prepared: Prepared
    program: Program
    runs_as_written: bool


@dataclass
class Runs:
    """What is kept of the runs of one captured step.

    `process_bytes` is what the process took in the last one, `overhead_bytes` what of it was not planned, `begun_bytes`
    what it took when the program began, `beside_bytes` what of that was beside the step, and `settled` says that the
    last run showed nothing new. `observed` says that a program has run, which shows what ops cost, `noted` is what the
    program holds, if it may run again from that (`runtime.repeated`), and `has_exceeded` says that the user's own
    function took more than the budget, and is not trusted again. Runs that took another time than was predicted are
    `surprises`. `kept_beside_bytes` is what was beside the step when the plan kept the budget last, unless it was
    forgiven since; `known_bytes` is what overhead was known before the last run.
    """

    count: int = 0
    process_bytes: int = 0
    overhead_bytes: int = 0
    beside_bytes: int = 0
    begun_bytes: int = 0
    settled: bool = False
    surprises: int = 0
    observed: bool = False
    has_exceeded: bool = False
    kept_beside_bytes: int | None = None
    known_bytes: int | None = None
    noted: Held | None = None


class GuidedPlanning:
    """Plans for the captured steps of one training, and what was learned from running them.

    `baseline_bytes` is what the process takes for other things than the step. The user's own function runs in ample
    room only if `as_written` allows it.
    """

    def __init__(
        self,
        training: Training,
        settings: Settings,
        platform: Platform,
        baseline_bytes: int,
        progress: Callable[[str, float], None],
        *,
        as_written: bool,
    ) -> None:
        self._training, self._settings, self._platform = training, settings, platform
        self._baseline_bytes, self._progress, self._as_written = baseline_bytes, progress, as_written
        self._machine: Machine | None = None
        self._overhead_bytes: int | None = None
        self._sure_bytes: int | None = None
        """What of the overhead programs have shown, and not the user's own function alone."""

    def planned(
        self, captured: Captured, tensors: Mapping[str, Tensor], runs: Runs, *, is_new: bool, grown_bytes: int = 0
    ) -> Runnable:
        """Plan a captured step for a call that brings these tensors, by input storage.

        The process holds `grown_bytes` more beside it than when it ran last. Raises `Infeasible` if the budget is below
        the floor.
        """
        self._progress("plan", 0.0)
        self._platform.make_room(captured, tensors)
        foreseen = runs.overhead_bytes + grown_bytes if grown_bytes > 0 else 0
        if self._machine is None:
            self._machine = self._platform.machine()
        demand = Demand(
            platform=self._platform,
            machine=self._machine,
            planner=self._settings.planner,
            captured=captured,
            known=self._platform.known(captured, self._progress),
            fixed=self._platform.fixed(captured, tensors),
            resting=frozenset(name for name, item in tensors.items() if extent_of(item.untyped_storage()) is not None),
            overhead_within=partial(self._overhead, captured, tensors, is_new=is_new, foreseen=foreseen),
            progress=self._progress,
        )
        makes_state = _makes_state(captured.graph)
        try:
            prepared, program = fitted(demand, self._settings.budget_bytes, is_new=is_new, is_thorough=not makes_state)
        except Infeasible as refusal:
            if not makes_state:
                raise
            raise refusal.saying(_LATER) from None
        capacity = prepared.plan.budget.capacity_bytes
        is_roomy = prepared.in_core.peak_bytes * _ROOMY + _ROOMY_BYTES <= capacity
        runs_as_written = is_roomy and self._as_written and not runs.has_exceeded
        if not runs_as_written:
            self._platform.make_ready(program, tensors, capacity)
            self._platform.install()
        return Runnable(prepared, program, runs_as_written)

    def planned_again(
        self, captured: Captured, tensors: Mapping[str, Tensor], runs: Runs, grown_bytes: int
    ) -> Runnable:
        """Plan a captured step with what its runs have shown.

        What the user's own function took beyond its tensors Python may have held, as no program does. Where no plan has
        room for that, it is forgotten.
        """
        try:
            return self.planned(captured, tensors, runs, is_new=False, grown_bytes=grown_bytes)
        except Infeasible:
            if self._overhead_bytes == self._sure_bytes:
                raise
            self._overhead_bytes = self._sure_bytes
            return self.planned(captured, tensors, runs, is_new=True)

    def _overhead(
        self, captured: Captured, tensors: Mapping[str, Tensor], within: int, *, is_new: bool, foreseen: int
    ) -> int:
        """The overhead that a run has shown, or is foreseen; before one has, at least what is to be expected."""
        shown = 0
        if self._overhead_bytes is not None:
            slack = max(self._platform.slack_bytes, int(self._overhead_bytes * _SLACK_SHARE))
            shown = max(self._overhead_bytes, foreseen) + slack
        if shown and not is_new:
            return shown
        unseen_bytes = self._platform.unseen_bytes(captured.graph, within)
        beside_bytes = max(0, self._beside(captured, tensors))
        return max(shown, beside_bytes + captured.copied_bytes + unseen_bytes)

    def beside_bytes(self, captured: Captured, tensors: Mapping[str, Tensor]) -> int:
        """What the process holds beside a step once what is free was given back."""
        self._platform.trim()
        return self._beside(captured, tensors)

    def _beside(self, captured: Captured, tensors: Mapping[str, Tensor]) -> int:
        """What the process holds now beyond its baseline and the tensors of a step; below 0 if others let go."""
        held = self._held(captured, tensors)  # first: it gives back what was read of the disk
        return self._busy_bytes() - held

    def _held(self, captured: Captured, tensors: Mapping[str, Tensor]) -> int:
        """The baseline of the process and what the tensors of a step take now."""
        going = [read(slot, self._training) for slot in captured.stale]
        known = [*tensors.values(), *(local(gradient) for gradient in going if isinstance(gradient, Tensor))]
        return self._baseline_bytes + self._platform.held_bytes(known)

    def begins(self, captured: Captured, tensors: Mapping[str, Tensor], runs: Runs) -> None:
        """Note what the process holds beside the step when a run of its program begins."""
        held = self._held(captured, tensors)
        runs.begun_bytes = self._busy_bytes()
        runs.beside_bytes = runs.begun_bytes - held

    def grown_bytes(self, captured: Captured, tensors: Mapping[str, Tensor], runs: Runs) -> int:
        """How much more the process holds beside the step than when its program ran last; 0 if there is room for it."""
        if not self._has_outgrown(runs):
            return 0
        grown = self.beside_bytes(captured, tensors) - runs.beside_bytes
        return grown if grown > self._most_grown_bytes(runs) else 0

    def _most_grown_bytes(self, runs: Runs) -> int:
        """How much more the process may hold beside a step than when it ran last."""
        return max(SLACK_BYTES, self._settings.budget_bytes - runs.process_bytes - SLACK_BYTES)

    def _has_outgrown(self, runs: Runs) -> bool:
        """Whether the process holds more by now than there is room for, be some of it free or of the step."""
        return self._busy_bytes() - runs.begun_bytes > self._most_grown_bytes(runs)

    def begins_as_written(self, runs: Runs) -> None:
        """Note what the process holds when the user's own function begins."""
        runs.begun_bytes = self._busy_bytes()

    def distrust(self, runs: Runs) -> None:
        """Let a plan run from now on if the user's own function would take more than the budget, by what has grown."""
        if self._has_outgrown(runs):
            self._platform.trim()
            runs.has_exceeded = self._has_outgrown(runs)
            runs.settled = not runs.has_exceeded

    def lacking_bytes(self, planned: Runnable, runs: Runs, grown_bytes: int) -> int:
        """What a plan lacks for the overhead of the last run and `grown_bytes`; below 0 if there is room for more."""
        return runs.overhead_bytes + grown_bytes - planned.prepared.plan.budget.overhead_bytes

    def _busy_bytes(self) -> int:
        """What the process takes now, without what rests for the next step."""
        return self._platform.process_bytes() - self._platform.idle_bytes()

    def excuse(self, runs: Runs, beside_bytes: int) -> None:
        """If the last run exceeded the budget by what was held beside it and has gone, take that off what it showed."""
        gone = runs.beside_bytes - beside_bytes
        if 0 < runs.process_bytes - self._settings.budget_bytes <= gone:
            runs.process_bytes -= gone
            is_most = runs.overhead_bytes == self._overhead_bytes
            runs.overhead_bytes = max(0, runs.overhead_bytes - gone)
            if is_most:
                self._overhead_bytes = self._sure_bytes = runs.overhead_bytes

    def forgives(self, runs: Runs, beside_bytes: int) -> bool:
        """Whether the plan that is there goes on though its last run exceeded the budget, and none has room for that.

        It does if it kept the budget before, beside as much as is held now; what the last run showed is forgotten.
        """
        if runs.kept_beside_bytes is None or beside_bytes > runs.kept_beside_bytes + SLACK_BYTES:
            return False
        remark(_FORGIVEN.format(format_bytes(runs.process_bytes), format_bytes(self._settings.budget_bytes)))
        runs.kept_beside_bytes = None
        runs.overhead_bytes = runs.known_bytes or 0
        self._overhead_bytes = self._sure_bytes = runs.known_bytes
        return True

    def looks_at(self, runs: Runs) -> bool:
        """Whether the run that comes next, or came last, shows when its operators ran."""
        return self._platform.observes or runs.count < _LOOKED_AT

    def note(self, captured: Captured, planned: Runnable, runs: Runs, outcome: Outcome, process_bytes: int) -> None:
        """Learn from a run: costs of ops that were observed, and what the process took beyond the timeline's peak."""
        runs.observed = True
        runs.process_bytes = process_bytes
        tells = self._platform.observes or (self.looks_at(runs) and not outcome.recording.waits_for_host)
        seen = _costs_seen(captured.graph, planned.prepared, runs, outcome) if tells else {}
        if seen:
            self._platform.cache.add(seen)
        runs.settled = not seen
        runs.count += 1
        if not self._platform.observes:
            runs.noted = runs.noted or outcome.recording.held
        held_bytes = self._platform.held_at_most(planned.program, outcome.recording)
        runs.overhead_bytes = max(0, process_bytes - held_bytes)
        if process_bytes <= self._settings.budget_bytes:
            runs.kept_beside_bytes = runs.beside_bytes
        runs.known_bytes = self._overhead_bytes
        is_more = self._has_shown(runs.overhead_bytes)
        self._sure_bytes = max(self._sure_bytes or 0, runs.overhead_bytes)
        if is_more or runs.overhead_bytes > planned.prepared.plan.budget.overhead_bytes:
            runs.settled = runs.settled and process_bytes <= self._settings.budget_bytes

    def note_as_written(self, planned: Runnable, runs: Runs, process_bytes: int, peak_bytes: int | None) -> Runnable:
        """Learn from a run of the user's own function; once it takes more than the budget, planned steps replace it.

        What it took beyond the peak of its tensors, where that is known, is overhead.
        """
        runs.count += 1
        runs.process_bytes = process_bytes
        runs.settled = process_bytes <= self._settings.budget_bytes
        if runs.settled:
            return planned
        if peak_bytes is not None:
            self._has_shown(max(0, process_bytes - peak_bytes))
        runs.has_exceeded = True
        return replace(planned, runs_as_written=False)

    def _has_shown(self, overhead_bytes: int) -> bool:
        """Note the overhead of a run; whether it is more than was seen before."""
        is_more = self._overhead_bytes is None or overhead_bytes > self._overhead_bytes
        if is_more:
            self._overhead_bytes = overhead_bytes
        return is_more


def _costs_seen(graph: Graph, prepared: Prepared, runs: Runs, outcome: Outcome) -> dict[str, Cost]:
    """Return what a run tells of costs, by key: means over the ops that share one.

    Usually it tells of the ops that were observed. If all costs were known and the run still took another time than
    predicted, it tells of all ops: known costs may be of another day, or of memory that was fresh.
    """
    seen = dict(outcome.observed)
    if not seen and runs.surprises < _SURPRISES and _is_surprising(outcome.recording, prepared):
        runs.surprises += 1
        seen = prepared.costs_in(outcome.recording.trace)
    if not seen:
        return {}
    grouped: dict[str, list[Cost]] = {}
    for op in graph.ops:
        own = [seen[part.name] for part in parts(op) if part.name in seen]
        if own and len(own) == len(parts(op)):
            seen[op.name] = from_parts(own)
        if op.name in seen:
            grouped.setdefault(cost_key(graph, op), []).append(seen[op.name])
    return {key: neediest(mean(cost.seconds for cost in costs), costs) for key, costs in grouped.items()}


def _is_surprising(recording: Recording, prepared: Prepared) -> bool:
    """Whether a run took another time than was predicted."""
    return abs(recording.seconds - prepared.plan.predicted.seconds) > _SURPRISE * recording.seconds


def _makes_state(graph: Graph) -> bool:
    """Whether a step makes state of an optimizer: then the next step, which finds it, is another one."""
    return any(graph.storages[name].role is Role.OPTIMIZER for name in graph.kept & graph.born_at.keys())
