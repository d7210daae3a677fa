"""How does a program run again on a heap? As it did before, with numbers for names (`runtime.numbered`).

What it takes and frees is known, so it notes only when each instruction was over, and makes room where much more comes
into being. Results are looked at as in any run: views of them would be wrong if they lay otherwise.
"""

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, final

import torch

from outgrow.analysis.timeline import Lane
from outgrow.ir.graph import Drop, SwapOut, Wait
from outgrow.runtime.execute import Outcome, Run, by_program, is_as_captured, require_as_captured
from outgrow.runtime.numbered import Arriving, Entering, Numbered, Numbers
from outgrow.runtime.program import Item
from outgrow.runtime.recording import Recording, Retold
from outgrow.runtime.results import compact, results_of


@final
class Rerun:
    """One run by numbers, on the tables of a `run` that has not begun; `table` has the values that are there."""

    def __init__(self, run: Run, numbers: Numbers) -> None:
        self.position = 0
        self.program, self.memory, self.progress = run.program, run.memory, run.progress
        self.storages, self.scalars, self.observed = run.storages, run.scalars, run.observed
        self._run, self._numbers = run, numbers
        self._table = list[Any]()
        self._room_bytes = 0
        """What is left of the capacity beside the user's storages."""

    def start(self) -> None:
        """Begin to measure."""
        run, numbers = self._run, self._numbers
        self._table += numbers.table
        for name, item in self.scalars.items():
            if name in numbers.number_of:
                self._table[numbers.number_of[name]] = item
        there = run.there_bytes()
        self._room_bytes = run.capacity_bytes - there
        begin = self.memory.begin(self._room_bytes - numbers.first_bytes)
        begun_bytes = there + self.memory.resting_bytes()
        self._retold = Retold(numbers.foreknown, there)
        run.recording = Recording(begin, perf_counter(), begun_bytes=begun_bytes, retold=self._retold)

    def read(self, names: Iterable[str]) -> tuple[Item, ...]:
        """Return values that are there at this point of the run."""
        return tuple(self._read(name) for name in names)

    def _read(self, name: str) -> Item:
        number = self._numbers.number_of.get(name)
        found = None if number is None else self._table[number]
        if found is None:
            found = self.scalars.get(name)
        return self._run.view_of(name) if found is None else found

    def finish(self) -> Outcome:
        """Return what came of the run."""
        return self._run.ended(self.read(self.program.results))

    def abandon(self) -> None:
        """Let go of everything after a failure, as any run does."""
        self._table.clear()
        self._run.abandon()

    def receive(self, returned: Sequence[torch.Tensor]) -> None:
        """Skip the call that comes next, taking what somebody else gives as its results."""
        part, at = self._numbers.parts[self.position], self.position
        assert isinstance(part, Numbered), "only a call returns something"
        self._retold.goes_on[at] = self.memory.moment()
        self._look(part)
        self._enter(part, returned)
        self._clear(self._numbers.cleared[at])
        self._bury(self._numbers.released[at])

    def advance(self, stop: int) -> None:
        """Run the instructions from where the run is up to number `stop`."""
        numbers, ahead = self._numbers, slice(self.position, stop)
        self._retold.goes_on[self.position] = self.memory.moment()
        rows = zip(numbers.parts[ahead], numbers.cleared[ahead], numbers.released[ahead], strict=True)
        with by_program(self._run.spill, is_timed=self.memory.is_timed):
            for part, cleared, released in rows:
                if isinstance(part, Numbered):
                    self._play(part)
                    self._clear(cleared)
                else:
                    self._clear(cleared)
                    self._move(part)
                self._bury(released)

    def _clear(self, numbers: Sequence[int]) -> None:
        """Forget values."""
        for number in numbers:
            self._table[number] = None

    def _bury(self, released: Sequence[str]) -> None:
        """Let go of the storages that die with the present instruction, and go on to the next."""
        for storage in released:
            self._run.let_go(storage)
        self._retold.moments.append(self.memory.moment())
        self.position += 1

    def _move(self, part: Arriving | SwapOut | Wait | Drop) -> None:
        match part:
            case Arriving(copy, held_after_bytes):
                address = self._run.reserve(copy.storage, copy.begin, copy.end)
                self.memory.leave_free(self._room_bytes - held_after_bytes)
                self._run.submit(Lane.IN, copy.storage, copy.begin, copy.end, address + copy.begin)
            case SwapOut(storage, begin, end):
                self._run.submit(Lane.OUT, storage, begin, end, self.storages[storage].data_ptr() + begin)
            case Wait(storage):
                self._run.arrive(storage)
            case Drop(storage, begin, end):
                self._run.drop(storage, begin, end)

    def _look(self, part: Numbered) -> None:
        """Make views that a call reads and nobody has looked at yet."""
        table, run = self._table, self._run
        for look in part.looked_at:
            if look.source is None or look.value in run.strides:
                table[look.number] = run.view_of(look.value)
            else:
                like = look.geometry
                table[look.number] = table[look.source].as_strided(like.shape, like.strides, like.offset)

    def _play(self, part: Numbered) -> None:
        call = part.call
        self._look(part)
        if part.held_before_bytes is not None:
            self.memory.leave_free(self._room_bytes - part.held_before_bytes)
        if call.updates:
            self.progress.updating = True
        keywords = call.keywords
        if part.by_keyword:
            keywords = {**keywords, **{key: find(self._table) for key, find in part.by_keyword}}
        returned = part.function(*part.gather(self._table), **keywords)
        self._enter(part, returned)

    def _enter(self, part: Numbered, returned: object) -> None:
        """Enter what an op returned, and make room for what follows."""
        results = results_of(returned)
        for entering in part.entering:
            self._enter_one(part, entering, results[entering.at] if entering.at < len(results) else None)
        if part.held_after_bytes is not None:
            self.memory.leave_free(self._room_bytes - part.held_after_bytes)

    def _enter_one(self, part: Numbered, entering: Entering, item: object) -> None:
        result = entering.result
        if isinstance(item, torch.Tensor):
            if not is_as_captured(item, result.geometry):
                require_as_captured(part.call, item, result.geometry)
                self._run.strides[result.value] = item.stride()
            if result.born is not None:
                storage = item.untyped_storage()
                if storage.nbytes() > result.size_bytes:
                    item = compact(item, result.geometry, result.size_bytes)
                    storage = item.untyped_storage()
                if entering.is_named:
                    self.storages[result.born] = storage
        elif item is not None:
            assert isinstance(item, int | float), f"{part.call.name} gives a tensor or a number, not {type(item)}"
            self.scalars[result.value] = item
        elif result.born is None:  # written in place, by an op that returns nothing
            item = self._run.view_of(result.value)
        self._table[entering.number] = item
