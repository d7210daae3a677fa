"""How does a program run again on a heap? As it did before, with numbers for names (`runtime.numbered`).

What it takes and frees is known, so it notes only when each instruction was over, and makes room where much more comes
into being. Results are looked at as in any run: views of them would be wrong if they lay otherwise.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, final

import torch

from outgrow.analysis.timeline import Lane
from outgrow.ir.graph import Drop, SwapOut, Wait
from outgrow.runtime.execute import SEVERAL, Outcome, Run, is_as_captured, require_as_captured
from outgrow.runtime.numbered import Arriving, Entering, Numbered, Numbers
from outgrow.runtime.program import Item
from outgrow.runtime.recording import Retold
from outgrow.runtime.results import compact


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

    def execute(self) -> Outcome:
        """Run every instruction and return what came of it."""
        self.start()
        self.advance(len(self.program.instructions))
        return self.finish()

    def start(self) -> None:
        """Begin to measure."""
        run, numbers = self._run, self._numbers
        self._table += numbers.table
        for name, item in self.scalars.items():
            if name in numbers.number_of:
                self._table[numbers.number_of[name]] = item
        there = sum(item.nbytes() for name, item in self.storages.items() if name not in self.program.stowed)
        self._room_bytes = run.capacity_bytes - there
        begin = self.memory.begin(self._room_bytes - numbers.at_first)
        self._recording = run.recording = Retold(
            begin,
            perf_counter(),
            begun_bytes=there + self.memory.resting_bytes(),
            foreknown=numbers.foreknown,
            there_bytes=there,
        )

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
        self._run.values.update({name: self._read(name) for name in self.program.results})
        return self._run.finish()

    def abandon(self) -> None:
        """Let go of everything after a failure, as any run does."""
        self._table.clear()
        self._run.abandon()

    def receive(self, returned: Sequence[torch.Tensor]) -> None:
        """Skip the call that comes next, taking what somebody else gives as its results."""
        part, at = self._numbers.parts[self.position], self.position
        assert isinstance(part, Numbered), "only a call returns something"
        self._recording.goes_on[at] = self.memory.moment()
        self._enter(part, returned)
        self._bury(self._numbers.cleared[at], self._numbers.released[at])

    def advance(self, stop: int) -> None:
        """Run the instructions from where the run is up to number `stop`."""
        numbers, spill, ahead = self._numbers, self._run.spill, slice(self.position, stop)
        serving = nullcontext() if spill is None else spill.serving(is_timed=self.memory.is_timed)
        self._recording.goes_on[self.position] = self.memory.moment()
        rows = zip(numbers.parts[ahead], numbers.cleared[ahead], numbers.released[ahead], strict=True)
        with torch.no_grad(), torch._C._DisableAutocast(), serving:  # noqa: SLF001 - casts are ops of the program
            for part, cleared, released in rows:
                if isinstance(part, Numbered):
                    self._play(part)
                else:
                    self._move(part, cleared)
                self._bury(cleared, released)

    def _bury(self, cleared: Sequence[int], released: Sequence[str]) -> None:
        """Let go of what dies with the present instruction, and go on to the next."""
        for number in cleared:
            self._table[number] = None
        for storage in released:
            self._run.let_go(storage)
        self._recording.moments.append(self.memory.moment())
        self.position += 1

    def _move(self, part: Arriving | SwapOut | Wait | Drop, cleared: Sequence[int]) -> None:
        match part:
            case Arriving(copy, after):
                address = self._run.reserve(copy.storage, copy.begin, copy.end)
                self.memory.leave_free(self._room_bytes - after)
                self._run.submit(Lane.IN, copy.storage, copy.begin, copy.end, address + copy.begin)
            case SwapOut(storage, begin, end):
                self._run.submit(Lane.OUT, storage, begin, end, self.storages[storage].data_ptr() + begin)
            case Wait(storage):
                self._run.arrive(storage)
            case Drop(storage, begin, end):
                for number in cleared:
                    self._table[number] = None
                self._run.drop(storage, begin, end)

    def _lookup(self, name: str) -> Any:
        return self._table[self._numbers.number_of[name]]

    def _play(self, part: Numbered) -> None:
        call, table = part.call, self._table
        for number, name in part.looked_at:
            table[number] = self._run.view_of(name)
        if part.before is not None:
            self.memory.leave_free(self._room_bytes - part.before)
        if call.updates:
            self.progress.updating = True
        if part.gather is None:
            returned = call.run(self._lookup)
        else:
            returned = call.function(*part.gather(table), **call.keywords)
        self._enter(part, returned)
        del returned
        if part.after is not None:
            self.memory.leave_free(self._room_bytes - part.after)

    def _enter(self, part: Numbered, returned: Any) -> None:
        """Enter what an op returned: one result, or several of which some may be missing."""
        if isinstance(returned, SEVERAL):
            for entering in part.entering:
                if entering.at < len(returned) and returned[entering.at] is not None:
                    self._enter_one(part, entering, returned[entering.at])
        elif returned is not None and len(part.call.results) == 1:
            for entering in part.entering:
                self._enter_one(part, entering, returned)

    def _enter_one(self, part: Numbered, entering: Entering, item: Any) -> None:
        result = entering.result
        if not isinstance(item, torch.Tensor):
            self.scalars[result.value] = item
        else:
            if not is_as_captured(item, result.geometry):
                require_as_captured(part.call, item, result.geometry)
                self._run.strides[result.value] = item.stride()
            if result.born is not None:
                storage = item.untyped_storage()
                if storage.nbytes() > result.size_bytes:
                    item = compact(item, result.geometry, result.size_bytes)
                    storage = item.untyped_storage()
                if entering.is_known:
                    self.storages[result.born] = storage
        self._table[entering.number] = item
