"""How does a program with planned addresses run again? From its score: op after op, with tensors that are there.

What a run notes and frees is the same every time, so only loose storages are freed, and nothing is noted. The user's
storages that rest in the next tier between steps stay there, as the user sees them; ops see them at their places in the
arena. So do storages that the step itself makes and that rest after it, such as gradients, from their birth on. A run
that fails leaves them as the last copies out have made them.
"""

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TypeAlias, final

import torch

from outgrow.analysis.timeline import Lane
from outgrow.ir.graph import SwapOut
from outgrow.runtime.execute import Outcome, Run, by_program, require_as_captured
from outgrow.runtime.numbered import numbers_of
from outgrow.runtime.planned_arena import PlannedMemory
from outgrow.runtime.program import Call, Item, Lookup
from outgrow.runtime.recording import Held, Recording
from outgrow.runtime.rerun import Rerun
from outgrow.runtime.resting import rest
from outgrow.runtime.results import results_of
from outgrow.runtime.score import Loose, Moved, Placed, Played, Score


@final
class Repeated:
    """One run from a score, on the tables of a `run` that has not begun.

    It takes and frees what another run has `noted` (`Recording.held`).
    """

    def __init__(self, run: Run, score: Score, noted: Held) -> None:
        self.score, self.position = score, 0
        self.program, self.memory, self.progress = run.program, run.memory, run.progress
        self.storages, self.scalars, self.observed = run.storages, run.scalars, run.observed
        self._run, self._noted = run, noted

    def start(self) -> None:
        """Begin to measure."""
        self._run.values.update(self.scalars)
        self._run.recording = Recording(self.memory.begin(0), perf_counter(), memory=self._noted)

    def read(self, names: Iterable[str]) -> tuple[Item, ...]:
        """Return values that are there at this point of the run."""
        return self._run.read(names)

    def finish(self) -> Outcome:
        """Return what came of the run."""
        return self._run.finish()

    def abandon(self) -> None:
        """Let go of everything after a failure, as any run does."""
        self._run.abandon()

    def advance(self, stop: int) -> None:
        """Run the instructions from where the run is up to number `stop`."""
        parts, dies = self.score.parts, self.score.dies
        with by_program(self._run.spill, is_timed=False):
            for at in range(self.position, stop):
                part = parts[at]
                if isinstance(part, Played):
                    self._play(part)
                elif isinstance(part, Moved):
                    self._move(part)
                elif part is not None:
                    self._wait(part.storage)
                if at in dies:
                    self._bury(dies[at])
                self.position = at + 1

    def _bury(self, storages: Iterable[str]) -> None:
        """Free what is loose and dies."""
        for storage in storages:
            self._run.forget(storage)
            self.storages.pop(storage, None)

    def receive(self, returned: Sequence[torch.Tensor]) -> None:
        """Skip the call that comes next, taking what somebody else gives as its results."""
        part = self.score.parts[self.position]
        assert isinstance(part, Played), "only a call returns something"
        self.memory.before(self.position)
        try:
            self._enter_results(part, returned)
        finally:
            self.memory.after()
        self._bury(self.score.dies.get(self.position, ()))
        self.position += 1

    def _play(self, part: Played) -> None:
        call, is_placing = part.call, part.is_placing
        if call.updates:
            self.progress.updating = True
        if is_placing:
            self.memory.before(self.position)
        try:
            if part.loose or part.loose_keywords or part.nested:
                returned = self._called(part)
            else:
                returned = call.function(*part.arguments, **part.keywords)
            for at, name in part.numbers:
                self._run.values[name] = results_of(returned)[at]
            if is_placing:
                self._enter_results(part, returned)
                returned = None
        finally:
            if is_placing:
                self.memory.after()

    def _enter_results(self, part: Played, returned: object) -> None:
        """See to the results with which storages are born."""
        results = results_of(returned)
        for placed in part.placed:
            item = results[placed.at]
            if item is not None:  # a gradient that was asked for
                self._settle(part.call, placed, item)
        for at, result in part.born:
            item = results[at]
            if item is not None:
                self._run.enter_one(part.call, result, item)

    def _called(self, part: Played) -> object:
        """Call an op with what is loose looked up."""
        lookup = self._run.lookup
        if part.nested:
            arguments = [_found(item, lookup) for item in part.arguments]
            return part.call.function(*arguments, **{key: _found(item, lookup) for key, item in part.keywords.items()})
        arguments, keywords = [*part.arguments], part.keywords
        for at, name in part.loose:
            arguments[at] = lookup(name)
        if part.loose_keywords:
            keywords = {**keywords, **{key: lookup(name) for key, name in part.loose_keywords}}
        return part.call.function(*arguments, **keywords)

    def _settle(self, call: Call, placed: Placed, item: torch.Tensor) -> None:
        """Check that a result is as it was captured, and bring it to where it is looked for."""
        require_as_captured(call, item, placed.result.geometry)
        if item.data_ptr() != placed.address:
            item = self.memory.born(placed.born, item, placed.result.geometry, placed.result.size_bytes)
        if placed.born in self._run.extents:
            storage = self.storages[placed.born] = item.untyped_storage()
            rest(storage, self._run.extents[placed.born])

    def _move(self, part: Moved) -> None:
        copy = part.copy
        lane = Lane.OUT if isinstance(copy, SwapOut) else Lane.IN
        self._run.submit(lane, copy.storage, copy.begin, copy.end, part.address)

    def _wait(self, storage: str) -> None:
        for flight in self._run.in_flight.pop(storage, ()):
            flight.wait()


def _found(argument: object, lookup: Lookup) -> object:
    """Return an argument with what is loose looked up, in lists too."""
    if isinstance(argument, list):
        return [_found(item, lookup) for item in argument]
    return lookup(argument.name) if isinstance(argument, Loose) else argument


Running: TypeAlias = Run | Repeated | Rerun
"""A run of a program, whichever way it goes."""


def execute(run: Running) -> Outcome:
    """Run every instruction and return what came of it."""
    run.start()
    run.advance(len(run.program.instructions))
    return run.finish()


def again(run: Run, noted: Held | None, staying: Iterable[str]) -> Running:
    """Return a run by numbers or from a score, in place of a run that has not begun; if there is neither, that run.

    A run by numbers observes nothing. One from a score tells no times of operators, and needs what an earlier run of
    the program has `noted` that it held, and which of the user's storages are `staying` where they are.
    """
    program, memory = run.program, run.memory
    if not isinstance(memory, PlannedMemory):
        return run if run.observe else Rerun(run, numbers_of(program))
    if noted is None or memory.is_timed or program.lasting != program.stowed:
        return run
    return Repeated(run, memory.arena.score(program, {name: run.storages[name] for name in staying}), noted)
