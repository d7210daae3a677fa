"""How is a step planned? Guided by its own runs: from modelled costs at first, then from what the runs have shown.

They show what ops cost, and the overhead of the process, which is what its high water shows above what was planned. It
is deducted from the budget before planning, and has two parts. What the process holds beside the step when it is called
(`frontends.beside`) is looked at whenever a plan is made. What a run takes beyond that is a share of what the step will
hold, before a run has shown it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean

from torch import Tensor

from outgrow.analysis.cost import Cost, cost_key, from_parts, neediest, pieces, with_joint
from outgrow.errors import Infeasible
from outgrow.frontends.beside import Beside
from outgrow.frontends.calls import let_go
from outgrow.frontends.entry import Entry, Runnable
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.runs import SLACK_BYTES, Runs, Shown
from outgrow.frontends.tracing.captured import Given
from outgrow.frontends.user.training.state import Training
from outgrow.frontends.within_budget import Demand, fitted, is_ample
from outgrow.ir.graph import Graph, Role
from outgrow.ir.machine import Machine
from outgrow.planning.planned import Planned
from outgrow.remarks import remark
from outgrow.runtime.execute import Outcome
from outgrow.runtime.recording import Recording
from outgrow.runtime.resting import extent_of
from outgrow.units import format_bytes

_NOISE_BYTES = 4 << 20
"""What it holds beside a step may differ by this much, and nothing of it be new."""
_SLACK_SHARE = 0.25
"""What a run was seen to take beyond what was held may grow by this share."""
_SURPRISE = 0.05
_SURPRISES = 2
"""A run that differs from its prediction by more than this share is planned again, this many times in any case."""
_PLANNING_SHARE = 1 / 50
"""After that, while planning again has taken no more than this share of the time of the runs: machines change."""
_MUCH_SHARE, _WORTH_SHARE, _MOST_REGAINED = 1 / 8, 1 / 20, 3
"""A plan that leaves this share of the budget to what is gone by now, and takes this much longer than the step in core,
is made again, so many times at most."""
_LOOKED_AT = 3
"""How many runs are timed op by op on a device that the host does not wait for."""
_FORGIVEN = (
    "The process took {} in a step, more than its budget of {}, by memory that is free again. The plan that is "
    "there goes on; if the next step exceeds the budget too, the one after it is refused. Does another thread take "
    "memory meanwhile?"
)
_FORGIVEN_AGAIN = 16
"""A plan is forgiven again after this many calls."""
_LATER = "Later steps may need more: `outgrow plan` says how much."
"""Said of the first step, which makes the state of an optimizer: later ones find it, and hold it from the beginning."""
_PLAN_BYTES = 1600
"""What a plan and its program take for each op."""


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
        self._settings, self._platform, self._progress = settings, platform, progress
        self.beside, self._as_written = Beside(training, platform, baseline_bytes), as_written
        self._machine: Machine | None = None
        self._own_bytes: int | None = None
        """The most that a program took beyond what was planned and held, of those whose first run kept the budget."""
        self._most_own_bytes: int | None = None
        """The same of programs that exceeded the budget, if a plan had room for it; for steps that have not run yet."""
        self._peak_multiple = 0.0
        """What the user's own function was seen to take at most, as a multiple of the peak of its tensors."""

    def planned(self, given: Given, runs: Runs, spare_bytes: int = 0) -> Runnable:
        """Plan a captured step for a call, from what runs have shown.

        The plan has room for what the last run of this step took beyond what was planned, and for `spare_bytes` more.
        If there is no such plan, `spare_bytes` is 0 and that run kept the budget, then room for what other programs
        took that kept the budget is enough: that run may have taken more because Python held tensors longer than a
        program does, or because somebody else took memory meanwhile. Raises `Infeasible` if the budget is below the
        floor.
        """
        self._progress("plan", 0.0)
        self._platform.make_room(given)
        if self._machine is None:
            self._machine = self._platform.machine()
        known = self._platform.known(given.captured, self._progress)
        beside = self.beside.kept_bytes(given)
        own = self._own(runs, beside)
        try:
            runnable = self._planned(given, runs, known, beside + spare_bytes, own)
        except Infeasible:
            if spare_bytes or own == self._own_bytes or runs.binds:
                raise
            runnable = self._planned(given, runs, known, beside, self._own_bytes)
            runs.shown = None
        if runs.binds:
            self._most_own_bytes = max(own or 0, self._most_own_bytes or 0)
        return runnable

    def _own(self, runs: Runs, kept_bytes: int) -> int | None:
        """What a run takes beyond what is held: the most that this step, or programs of this training, have shown.

        A step that has shown nothing yet is taken to need as much as any that had a plan.
        """
        shown = self._most_own_bytes if runs.shown is None else runs.shown.own_bytes(kept_bytes)
        return max((found for found in (self._own_bytes, shown) if found is not None), default=None)

    def _planned(
        self,
        given: Given,
        runs: Runs,
        known: Mapping[str, Cost],
        beside: int,
        own: int | None,
    ) -> Runnable:
        assert self._machine is not None, "it was measured before"
        is_new = not runs.observed
        held = beside + (len(given.captured.graph.ops) * _PLAN_BYTES if is_new else 0)  # by when it runs

        def overhead_within(limit_bytes: int) -> int:
            expected = _with_slack(own, self._platform.slack_bytes)
            if is_new or own is None:
                unseen = given.captured.copied_bytes + self._platform.unseen_bytes(given.captured.graph, limit_bytes)
                expected = max(expected, unseen)
            return max(0, held + expected)

        demand = Demand(
            platform=self._platform,
            machine=self._machine,
            planner=self._settings.planner,
            captured=given.captured,
            known=known,
            fixed=self._platform.fixed(given),
            resting=frozenset(
                name for name, item in given.tensors.items() if extent_of(item.untyped_storage()) is not None
            ),
            overhead_within=overhead_within,
            progress=self._progress,
        )
        makes_state = _makes_state(given.captured.graph)
        try:
            planned, program = fitted(demand, self._settings.budget_bytes, is_new=is_new, is_thorough=not makes_state)
        except Infeasible as refusal:
            if not makes_state:
                raise
            raise refusal.saying(_LATER) from None
        budget = planned.plan.budget
        is_roomy = is_ample(planned.in_core.peak_bytes, budget.capacity_bytes, self._peak_multiple)
        runs_as_written = is_roomy and self._as_written and not runs.function.has_exceeded
        if not runs_as_written:
            let_go(given, self.beside.training)
            self._platform.make_ready(program, given.tensors, budget.capacity_bytes)
        needed, unplanned = self._platform.needed_bytes(planned, program), max(0, budget.overhead_bytes - held)
        return Runnable(planned, program, needed, unplanned, runs_as_written)

    def lacking_bytes(self, given: Given, runnable: Runnable, runs: Runs) -> int:
        """What a plan lacks for what is held by now and its own run; below 0 if there is room for more.

        If it has not run yet, it is taken to need as much as it was planned for, without the slack.
        """
        beside = self.beside.kept_bytes(given)
        if runs.shown is None:
            own = self._own_bytes
        else:
            own = self._own(runs, beside) if runs.is_fresh else runs.shown.own_bytes(beside)
        taking = self._expected(runnable) if own is None else own
        return runnable.needed_bytes + beside + taking - self._settings.budget_bytes

    def _expected(self, runnable: Runnable) -> int:
        """What a run is expected to take that no run has shown, without the slack."""
        return max(0, runnable.unplanned_bytes - self._platform.slack_bytes)

    def is_outdated(self, given: Given, entry: Entry) -> bool:
        """Whether a plan has no room for what others have taken since its program ran, or leaves room for what is gone.

        What is free is given back only where there is no room for it, or where the plan has not run yet, since its
        first run failed. What is held beside the step, and the room that is left to the call that comes, are noted.
        """
        runnable, runs = entry.runnable, entry.runs
        shown = runs.shown
        if runs.is_fresh or shown is None:
            lacking = self.lacking_bytes(given, runnable, runs)
            _make_room(entry, runnable.needed_bytes - lacking)
            return lacking > 0
        if self._lacks_room(given, entry, shown):
            return True
        regains = runs.regained < _MOST_REGAINED and self._regains_room(entry)  # memory may come and go
        runs.regained += regains
        return regains

    def _regains_room(self, entry: Entry) -> bool:
        """Whether a step that could be quicker may use much more of the budget than when it was planned."""
        runs, plan, limit = entry.runs, entry.runnable.planned.plan, self._settings.budget_bytes
        overhead = runs.held_bytes + _with_slack(self._own(runs, runs.held_bytes), self._platform.slack_bytes)
        is_much = plan.budget.overhead_bytes - max(0, overhead) >= limit * _MUCH_SHARE
        return is_much and plan.predicted.seconds > plan.in_core.seconds * (1 + _WORTH_SHARE)

    def _lacks_room(self, given: Given, entry: Entry, shown: Shown) -> bool:
        """Whether others have taken so much since a program ran last that there is no room for it now."""
        runnable, runs = entry.runnable, entry.runs
        runs.held_bytes = self.beside.held_bytes(given)
        runs.kept_bytes = min(runs.kept_bytes, runs.held_bytes)
        room = self._settings.budget_bytes - runnable.needed_bytes - shown.overhead_bytes
        grown = runs.held_bytes - shown.least_bytes
        most = max(room - _NOISE_BYTES, min(_NOISE_BYTES, max(0, room)))
        if grown > most:
            kept = runs.kept_bytes = runs.held_bytes = self.beside.kept_bytes(given)
            grown = kept + shown.own_bytes(kept) - shown.overhead_bytes
        _make_room(entry, runnable.needed_bytes + room - grown)
        return grown > most

    def begins(self, given: Given, entry: Entry) -> None:
        """Get ready for a program that runs for the first time, and note what the process holds beside the step."""
        runs = entry.runs
        if runs.is_fresh:
            self._platform.install()
            runs.held_bytes = runs.kept_bytes = self.beside.kept_bytes(given)

    def begins_as_written(self, entry: Entry) -> None:
        """Let no more memory rest than there is room for beside the user's own function, and note what is held."""
        function = entry.runs.function
        function.begun_bytes = self.beside.taken_bytes()
        self._platform.keep_at_most(self._most_beside_function(entry) - function.begun_bytes)
        function.rested_bytes = self._platform.resting_bytes()

    def review(self, entry: Entry) -> None:
        """Let a plan run from now on if the user's own function would take more than the budget by now."""
        most, function = self._most_beside_function(entry), entry.runs.function
        if self.beside.taken_bytes() > most:
            self._platform.trim()
            function.has_exceeded = self.beside.taken_bytes() > most
        if function.has_exceeded:
            _replace_function(entry)

    def _most_beside_function(self, entry: Entry) -> int:
        """What may be taken when the user's own function begins, so that it keeps the budget."""
        runnable = entry.runnable
        rising = max(runnable.planned.in_core.peak_bytes + runnable.unplanned_bytes, entry.runs.function.risen_bytes)
        return self._settings.budget_bytes - rising - SLACK_BYTES

    def forgives(self, given: Given, entry: Entry, call: int) -> bool:
        """Whether the plan that is there goes on though its last run exceeded the budget, and none has room for that.

        It does if it has room for what was known before, or expected, unless it was forgiven a few calls ago; what the
        last run showed is forgotten. A `call` that is refused counts as well.
        """
        runnable, runs, limit = entry.runnable, entry.runs, self._settings.budget_bytes
        known = self._expected(runnable) if self._own_bytes is None else self._own_bytes
        if not runs.binds or (runs.forgiven_at is not None and call < runs.forgiven_at + _FORGIVEN_AGAIN):
            return False
        held = self.beside.kept_bytes(given)
        if runnable.needed_bytes + held + known > limit:
            return False
        remark(_FORGIVEN.format(format_bytes(runs.process_bytes), format_bytes(limit)))
        runs.forgiven_at = call
        runs.held_bytes = runs.kept_bytes = held
        runs.shown = Shown(held + known, held, held, held)
        return True

    def looks_at(self, entry: Entry) -> bool:
        """Whether the run that comes next, or came last, shows when its operators ran."""
        return self._platform.observes or entry.runs.count < _LOOKED_AT

    def note(self, given: Given, entry: Entry, outcome: Outcome, process_bytes: int) -> None:
        """Learn from a run with these tensors: costs of ops that were observed, and what the process took."""
        runnable, runs = entry.runnable, entry.runs
        runs.observed = True
        runs.process_bytes = process_bytes
        tells = self._platform.observes or (self.looks_at(entry) and not outcome.recording.waits_for_host)
        if self._platform.observes:
            runs.seconds += outcome.recording.seconds
        seen = _costs_seen(given.captured.graph, runnable.planned, runs, outcome) if tells else {}
        if seen:
            self._platform.cache.add(seen)
        has_exceeded = process_bytes > self._settings.budget_bytes
        runs.settled = not seen and not has_exceeded
        runs.count += 1
        if not self._platform.observes:
            runs.noted = runs.noted or outcome.recording.held
        overhead = process_bytes - self._platform.held_at_most(runnable.program, outcome.recording)
        begun = held = runs.held_bytes
        if runs.is_fresh or has_exceeded:
            results = [item for item in outcome.results if isinstance(item, Tensor)]
            held = self.beside.kept_bytes(given, results)
        runs.shown = Shown(overhead, runs.kept_bytes, begun, held, binds=has_exceeded)
        if runs.is_fresh and not has_exceeded:  # later runs may begin beside what others hold for a while
            self._own_bytes = self._own(runs, held)
        runs.is_fresh = False

    def note_as_written(self, entry: Entry, process_bytes: int) -> None:
        """Learn from a run of the user's own function; once it takes more than the budget, planned steps replace it."""
        runs = entry.runs
        runs.count += 1
        runs.process_bytes = process_bytes
        function = runs.function
        risen_bytes = process_bytes - function.begun_bytes - function.rested_bytes
        function.risen_bytes = max(function.risen_bytes, risen_bytes)  # a smaller batch takes less
        runs.settled = process_bytes <= self._settings.budget_bytes
        if not runs.settled:
            function.has_exceeded = True
            _replace_function(entry)

    def note_captured(self, given: Given, entry: Entry) -> None:
        """Learn what the user's own function took beyond the peak of its tensors, since it did what was captured."""
        runs, peak = entry.runs, entry.runnable.planned.in_core.peak_bytes
        held = runs.function.begun_bytes - self.beside.tensor_bytes(given)
        runs.shown = Shown(runs.process_bytes - peak, held, held, held)
        self._peak_multiple = max(self._peak_multiple, (runs.process_bytes - held) / max(1, peak))


def _replace_function(entry: Entry) -> None:
    """Let a plan, which is to be made again, run in place of the user's own function."""
    entry.runnable, entry.runs.settled = replace(entry.runnable, runs_as_written=False), False


def _make_room(entry: Entry, room_bytes: int) -> None:
    """Let the call that comes use no more than this for what is planned, but as much as the program needs."""
    runnable = entry.runnable
    entry.runs.room_bytes = min(runnable.capacity_bytes, max(runnable.needed_bytes, room_bytes - _NOISE_BYTES))


def _with_slack(own_bytes: int | None, slack_bytes: int) -> int:
    """What a run may take that was seen to take as much before."""
    return 0 if own_bytes is None else own_bytes + max(slack_bytes, int(own_bytes * _SLACK_SHARE))


def _costs_seen(graph: Graph, planned: Planned, runs: Runs, outcome: Outcome) -> dict[str, Cost]:
    """Return what a run tells of costs, by key: means over the ops that share one.

    Usually it tells of the ops that were observed. If all costs were known and the run still took another time than
    predicted, it tells of all ops: known costs may be of another day, or of memory that was fresh.
    """
    seen = dict(outcome.observed)
    may_surprise = runs.surprises < _SURPRISES or runs.planning_seconds <= _PLANNING_SHARE * runs.seconds
    if not seen and may_surprise and _is_surprising(outcome.recording, planned):
        runs.surprises += 1
        seen = planned.costs_in(outcome.recording.trace)
    if not seen:
        return {}
    grouped: dict[str, list[Cost]] = {}
    for op in with_joint(graph):
        own = pieces(graph, op)
        if own and all(name in seen for name in own):
            seen[op.name] = from_parts([seen[name] for name in own])
        if op.name in seen:
            grouped.setdefault(cost_key(graph, op), []).append(seen[op.name])
    return {key: neediest(mean(cost.seconds for cost in costs), costs) for key, costs in grouped.items()}


def _is_surprising(recording: Recording, planned: Planned) -> bool:
    """Whether a run took another time than was predicted."""
    return abs(recording.seconds - planned.plan.predicted.seconds) > _SURPRISE * recording.seconds


def _makes_state(graph: Graph) -> bool:
    """Whether a step makes state of an optimizer: then the next step, which finds it, is another one."""
    return any(graph.storages[name].role is Role.OPTIMIZER for name in graph.kept & graph.born_at.keys())
