"""Which plans does a step have? One for each signature, made twice: from modelled costs, then from observed ones.

An entry serves the calls for which its captured step is right. Where the user's own function runs, in ample room, it
serves those with smaller batches as well, since these have room, too. Workers of a mesh serve a call by the same entry,
or capture it anew together: one that is alone in seeing a change would wait for the others for ever.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from time import perf_counter

import torch
from torch import Tensor

from outgrow.errors import Infeasible
from outgrow.frontends.advice import Advice
from outgrow.frontends.calls import let_go
from outgrow.frontends.capturing import Capturing
from outgrow.frontends.entry import Ample, Arguments, Entry, Runnable, Served
from outgrow.frontends.fake.looks.guessing import NOTHING_TOLD, Guess, Told
from outgrow.frontends.guided import GuidedPlanning
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.runs import Runs
from outgrow.frontends.tracing.captured import Captured, Given
from outgrow.frontends.tracing.signature import Signature, signature
from outgrow.frontends.user.left.counts import Count, uncounted
from outgrow.frontends.user.left.refusing import Left, nothing_shown, withheld
from outgrow.frontends.user.training.state import Training, held_tensors, local
from outgrow.report.plans import PlanReport, PlansReport
from outgrow.runtime import arena
from outgrow.runtime.freeing import clear_away
from outgrow.runtime.resting import is_loaded

_MOST_ENTRIES = 32
"""A step keeps at most this many entries, and forgets the one that was not used for the longest."""
_OP_BYTES = 4300
"""What an op takes of the memory of the process in graph, plan and program."""
_MOST_PLANS = 3
"""How many plans are made anew at a call, at most, until one has room for what planning itself has left behind."""


class Entries:
    """The entries of one step."""

    def __init__(self, capturing: Capturing, guided: GuidedPlanning, platform: Platform) -> None:
        self._capturing, self._guided, self._platform = capturing, guided, platform
        self._training, self._workers = capturing.training, capturing.workers
        self._budget_bytes = capturing.settings.budget_bytes
        self._by_signature: dict[Signature, list[Entry]] = {}
        self._overwritten: dict[tuple[int, str], Left] = {}
        self._counts: dict[Hashable, Count] = {}
        """Numbers in attributes that some captured step counts up, by their locations; signatures leave them out."""
        self._calls = self._made = self._dropped = 0
        self._advice = Advice(self._training)
        self._way: tuple[Guess, ...] = ()
        """What the last call decided."""
        self._ample: Ample | None = None
        self.last: Entry | None = None
        """The entry of the call that was ready last, unless it has been forgotten."""

    def begun(self) -> Told:
        """Begin a call; return what it decides if it goes the way that the last two calls both went."""
        before = self._way
        self._way = () if self.last is None else self.last.captured.guesses
        return Told(likely=before) if before == self._way else NOTHING_TOLD

    def ready(self, arguments: Arguments, told: Told = NOTHING_TOLD) -> Served:
        """Return the entry of this call, captured and planned, and planned again once costs have been observed.

        Where a run finds guesses wrong the call is repeated, and `told` what has been found.
        """
        self._calls += 1
        if told.certain and self.last is not None:
            self.last.has_erred = True
        ample, taken = self._ample, self._guided.beside.taken_bytes
        if ample is not None and ample.still_holds(arguments.seen(self._training), arguments, taken()):
            served = Served(ample.entry, is_known=False)
        else:
            self._ample = None  # its entry may be forgotten
            served = self._examined(arguments, told)
            if served.entry.runnable.runs_as_written and served.entry.runs.settled:
                self._ample = Ample.of(served.entry, self._training, taken())
        self.last = served.entry
        self.last.last_call = self._calls
        return served

    def _examined(self, arguments: Arguments, told: Told) -> Served:
        with nothing_shown(self._training.owners()):
            return self._looked_at(arguments, told)

    def _looked_at(self, arguments: Arguments, told: Told) -> Served:
        key = self._signature(arguments, self._overwritten, self._counts)
        leaves = arguments.leaves
        candidates = self._by_signature.get(key, [])
        if told.certain:
            candidates = [entry for entry in candidates if entry.captured.goes(told)]
        found = self._serving(candidates, leaves)
        if found is None and _own_what_was_loaded(self._training):
            found = self._serving(candidates, leaves)
        if found is not None and not told.certain and self._lets_go(found):
            return self._looked_at(arguments, told)
        number = None if found is None else found.entry.number
        if self._workers is not None and not self._workers.agree_on(number, self._training, leaves):
            found = None
        if found is None:
            larger = self._larger(key, arguments)
            found = Served(self._new(key, arguments, told)) if larger is None else Served(larger, is_known=False)
        else:
            ran_as_written = found.entry.runnable.runs_as_written
            self._look_again(found, leaves)
            if ran_as_written and not found.entry.runnable.runs_as_written:  # of its plan more has to hold
                return self._looked_at(arguments, told)
        if told.certain:  # steps mostly go the way that they went last
            alike = next(entries for entries in self._by_signature.values() if found.entry in entries)
            alike.sort(key=lambda entry: entry is not found.entry)
        return found

    def _lets_go(self, served: Served) -> bool:
        """Whether gradients go that an entry would replace, which has erred: a call is repeated without them.

        So entries for the ways that such calls go are found at once, the one of the last call first.
        """
        given = served.given
        if given is None or not served.entry.has_erred or not given.captured.stale:
            return False
        let_go(given, self._training)
        return True

    def _larger(self, key: Signature, arguments: Arguments) -> Entry | None:
        """Return an entry of a larger batch for which the user's own function runs, in ample room, if there is one."""
        seen = arguments.seen(self._training)
        alike = (entry for other, found in self._by_signature.items() if other.is_of_state(key) for entry in found)
        entry = next((item for item in alike if item.has_room_for(seen, arguments)), None)
        if entry is None:
            return None
        self.come_home()
        self._guided.review(entry)
        return entry if entry.runnable.runs_as_written else None

    def _look_again(self, served: Served, leaves: Sequence[object]) -> None:
        """Plan an entry again if its last run has shown something new, or others have taken or left memory since."""
        entry, given, runs = served.entry, served.given, served.entry.runs
        if entry.runnable.runs_as_written:
            self.come_home()
            self._guided.review(entry)
        is_outdated = given is not None and self._guided.is_outdated(given, entry)
        has_new = not runs.settled and (runs.count > 0 or runs.function.has_exceeded)
        if is_outdated or has_new:
            self._plan_again(entry, leaves)

    def _new(self, key: Signature, arguments: Arguments, told: Told) -> Entry:
        """Capture and plan a call of which some guesses are `told`, and keep the entry under its signature."""
        begin, leaves = perf_counter(), arguments.leaves
        exceeding = (other.runs for other in self._by_signature.get(key, ()) if other.runs.function.has_exceeded)
        runs = next(exceeding, Runs()).alike()
        captured = self._captured(arguments, told)
        there = {key: item for key, item in self._overwritten.items() if item.is_there}
        left = there | {item.key: item.merged(there) for item in captured.overwritten}
        counts = self._counts | {count.location.key: count for count in captured.counts if count.is_signed}
        if captured.overwritten or captured.counts:
            key = self._signature(arguments, left, counts)  # now: planning lets gradients go, which are part of it
        while (runnable := self._planned(captured, leaves, runs)) is None:
            del captured
            clear_away()
            # it comes to lie where those were that have been forgotten
            captured = self._captured(arguments, told)
            clear_away()
        entry = Entry(
            number=self._made,
            seen=arguments.seen(self._training),
            captured=captured,
            runnable=runnable,
            runs=runs,
            shapes=tuple(tuple(x.shape) for x in leaves if isinstance(x, Tensor)),
            new_floor_bytes=runnable.planned.plan.floor_bytes + self._platform.slack_bytes,
            seconds=perf_counter() - begin,
            last_call=self._calls,
        )
        self._made += 1
        self._overwritten, self._counts = left, counts
        self._advice.on_changes(entry, self.last)
        self._by_signature.setdefault(key, []).append(entry)
        self._advice.on_many(entry, self._kept, leaves)
        if len(self._kept) > _MOST_ENTRIES:
            self._forget(self._by_use[:1])
            self._advice.on_shapes(_MOST_ENTRIES)
        return entry

    def _captured(self, arguments: Arguments, told: Told) -> Captured:
        """Capture a call, which must not read results that others leave in attributes, whatever is there now."""
        with withheld(item for item in self._overwritten.values() if item.node):
            return self._capturing.captured(arguments, self._counted, told)

    def _planned(self, captured: Captured, leaves: Sequence[object], runs: Runs) -> Runnable | None:
        """Return a plan of a step that is new; None if older entries had to be forgotten to make room for one."""
        try:
            plans = self._plans(captured.given(self._training, leaves), runs)
            (runnable,) = deque(plans, maxlen=1)
        except Infeasible as refusal:
            older = self._older(refusal.floor_bytes - self._budget_bytes)
            if older is None:
                raise
        else:
            return runnable
        self._forget(older)
        self._advice.on_crowding()
        return None

    def _signature(
        self, arguments: Arguments, left: Mapping[tuple[int, str], Left], counts: Mapping[Hashable, Count]
    ) -> Signature:
        """Return the signature of a call; what is `left` in attributes, and counted there, makes no difference."""
        with withheld(left.values()), uncounted(counts.values()):
            training, given = self._training, (arguments.args, arguments.kwargs)
            return signature(self._capturing.step, training.models, training.optimizers, *given, counts.values())

    @property
    def _counted(self) -> Collection[Count]:
        """Numbers that some captured step counts up, wherever they are."""
        found = {count.location.key: count for entry in self._kept for count in entry.captured.counts}
        return (found | self._counts).values()

    @property
    def _kept(self) -> list[Entry]:
        return [entry for found in self._by_signature.values() for entry in found]

    def floor_bytes(self, entry: Entry) -> int:
        """Return the smallest budget with which a new process trains on such batches, from its first step on.

        It is no more than the budget, under which all of them have plans.
        """
        floors = (other.new_floor_bytes for other in self._kept if other.shapes == entry.shapes)
        floor = max(floors, default=entry.new_floor_bytes)
        return min(floor, self._budget_bytes)

    def report(self) -> PlansReport:
        """Return which plans there are, and what they cost."""
        rows = (
            PlanReport(
                entry.shapes,
                len(entry.captured.graph.ops),
                entry.runnable.runs_as_written,
                entry.runs.count,
                entry.seconds,
            )
            for entry in self._kept
        )
        return PlansReport(tuple(rows), self._dropped)

    @property
    def _by_use(self) -> list[tuple[Signature, Entry]]:
        """The entries with their signatures; those come first that were not used for the longest."""
        entries = [(key, entry) for key, found in self._by_signature.items() for entry in found]
        return sorted(entries, key=lambda item: item[1].last_call)

    def _older(self, lacking_bytes: int) -> list[tuple[Signature, Entry]] | None:
        """Return entries that take as much memory as is lacking, from the one that was not used for the longest on.

        None if all of them take less. On a device they take none of it, and processes of a mesh keep the same ones.
        """
        if self._platform.anchored or self._workers is not None:
            return None
        found = self._by_use
        taken = [*accumulate(len(entry.captured.graph.ops) * _OP_BYTES for _, entry in found)]
        enough = bisect_left(taken, lacking_bytes) + 1
        return found[:enough] if enough <= len(found) else None

    def _forget(self, entries: Sequence[tuple[Signature, Entry]]) -> None:
        """Forget entries that are kept."""
        for key, entry in entries:
            self._by_signature[key].remove(entry)
            self._platform.forget(entry.runnable.program)
            if self.last is entry:
                self.last = None
            if not self._by_signature[key]:
                del self._by_signature[key]
        self._dropped += len(entries)

    def _serving(self, candidates: Sequence[Entry], leaves: Sequence[object]) -> Served | None:
        """Return the first of the entries that is right for this call."""
        return next((found for entry in candidates if (found := self._served(entry, leaves)) is not None), None)

    def _served(self, entry: Entry, leaves: Sequence[object]) -> Served | None:
        """Return an entry of the same signature if it is right for this call, and can move what it wants to move.

        The user's own function is right for all calls: hyper-parameters change what it takes by little beside its room.
        """
        captured, as_written = entry.captured, entry.runnable.runs_as_written
        if not as_written and not (
            captured.outside.still_hold() and captured.fills_alike() and captured.guards_hold(self._training)
        ):
            return None
        if captured.answered_otherwise(leaves, self._training) is not None:
            return None
        if as_written:
            return Served(entry, is_known=captured.outside.still_hold())
        if not captured.is_apart(leaves):
            return None
        given = captured.given(self._training, leaves)
        if not all(item.still_lies(given.tensors) for item in captured.found):
            return None
        platform, lasting = self._platform, entry.runnable.program.lasting
        moving = lasting & given.tensors.keys()
        is_apart = not (moving and captured.constants) or moving.isdisjoint(given.shared)  # else signatures tell
        moves = is_apart and all(platform.may_leave(captured.graph, name, given.tensors[name]) for name in moving)
        return Served(entry, given) if moves else None

    def come_home(self, *, is_own: bool = False) -> None:
        """Bring what rests in the next tier between steps back to memory; `is_own`: only from that of this step."""
        held = (local(tensor).untyped_storage() for tensor in held_tensors(self._training))
        self._platform.come_home(held, is_own=is_own)

    def _plan_again(self, entry: Entry, leaves: Sequence[object]) -> None:
        """Plan from observed costs, with room for what is held beside the step by now, be it of planning.

        If there is no such plan, the old one stays if it has room for that nevertheless, or may be forgiven.
        """
        begin, runs = perf_counter(), entry.runs
        given = entry.captured.given(self._training, leaves)
        try:
            for runnable in self._plans(given, runs):
                self._exchange(entry, runnable)
        except Infeasible:
            is_lacking = self._guided.lacking_bytes(given, entry.runnable, runs) > 0
            if is_lacking and not self._guided.forgives(given, entry, self._calls):
                raise
        finally:
            seconds = perf_counter() - begin
            entry.seconds += seconds
            runs.planning_seconds += seconds
        runs.settled = True

    def _plans(self, given: Given, runs: Runs) -> Iterator[Runnable]:
        """Yield plans of a step, at most a few, up to one that has room for what planning itself has left behind.

        Each spares what the ones before it were lacking: it is taken to leave as much behind. Where that is too much,
        one that spares nothing is the last.
        """
        spare_bytes, lacking_bytes, slack_bytes = 0, 0, self._platform.slack_bytes
        for _ in range(_MOST_PLANS):
            try:
                runnable = self._guided.planned(given, runs, spare_bytes)
            except Infeasible:
                if not spare_bytes:
                    raise
                break
            yield runnable
            lacking_bytes = self._guided.lacking_bytes(given, runnable, runs)
            if lacking_bytes + slack_bytes // 2 <= 0:
                return
            spare_bytes += lacking_bytes + slack_bytes
        else:
            return
        try:
            yield self._guided.planned(given, runs)
        except Infeasible:
            if lacking_bytes > 0:
                raise

    def _exchange(self, entry: Entry, runnable: Runnable) -> None:
        """Let another plan take the place of the one that an entry has."""
        self._platform.forget(entry.runnable.program)
        entry.runnable, entry.runs.noted, entry.runs.room_bytes, entry.runs.is_fresh = runnable, None, None, True

    def note_as_written(self, served: Served, arguments: Arguments, process_bytes: int) -> None:
        """Learn from a run of the user's own function, in which the process took these bytes at most."""
        entry = served.entry
        self._guided.note_as_written(entry, process_bytes)
        if entry.runs.function.has_exceeded and self._is_as_captured(served, arguments):
            given = entry.captured.given(self._training, arguments.leaves)
            self._guided.note_captured(given, entry)

    def _is_as_captured(self, served: Served, arguments: Arguments) -> bool:
        """Whether a call that was carried out as it is written was that of its entry."""
        if served.is_known:
            return True
        with nothing_shown(self._training.owners()):
            alike = self._by_signature.get(self._signature(arguments, self._overwritten, self._counts), ())
        return served.entry in alike and served.entry.captured.outside.still_hold()

    def close(self) -> None:
        """Give the disk space back, and memory that rests; entries take both anew when they run."""
        self.come_home(is_own=True)
        self._platform.close()


def _own_what_was_loaded(training: Training) -> bool:
    """Give memory that can be moved to each large tensor that `torch.load` made; return whether there was any.

    The tensor object stays the same. A tensor whose memory others see, by a view or a NumPy array, is left alone.
    """
    found = False
    for tensor in map(local, held_tensors(training)):
        is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes >= arena.LEAST_BYTES
        if is_whole and is_loaded(tensor.untyped_storage()):
            # whatever the first call does, later ones may train
            with torch.inference_mode(mode=False), torch.no_grad():
                tensor.data = tensor.detach().clone()
            found = True
    return found
