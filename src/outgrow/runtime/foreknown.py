"""What will a run of a program hold, and when? It is known before it runs, but for the user's own storages.

Moments have numbers:

    2k       instruction k begins
    2k + 1   it is over
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outgrow.analysis.timeline import peak_bytes
from outgrow.ir.graph import Drop, SwapIn, SwapOut, Wait
from outgrow.runtime import arena
from outgrow.runtime.program import Call, Program


@dataclass(frozen=True, repr=False)
class Foreknown:
    """What every run of a program does; sizes are those that were planned.

    By position, `names` are those of its ops (None: no op), and it `waits` for copies. Each of `changes` is a moment,
    and the bytes of the device and of the next tier that are taken then, or freed (n, 3). The user's storages that the
    run finds on the device do not count until they are moved or die. At most `peak_bytes` are held.
    """

    names: tuple[str | None, ...]
    waits: frozenset[int]
    changes: NDArray[np.int64]
    peak_bytes: int


@dataclass(frozen=True, repr=False)
class Course:
    """What is held, by position: when an instruction begins, and once all that it makes is there, without workspace.

    By then `rested_bytes` have come to rest since the run began: of large storages, whose memory is kept for others.
    """

    foreknown: Foreknown
    begun_bytes: tuple[int, ...]
    risen_bytes: tuple[int, ...]
    rested_bytes: tuple[int, ...]


def course_of(program: Program) -> Course:
    """Return what every run of a program does."""
    ledger, rows = _Ledger(program), list[tuple[int, int, int]]()
    for position, item in enumerate(program.instructions):
        begun_bytes = ledger.held_bytes
        match item:
            case Call():
                ledger.call(2 * position, item)
            case SwapOut(storage, begin, end):
                ledger.rest(2 * position, storage, end - begin)
            case SwapIn(storage, begin, end):
                ledger.come_back(2 * position, storage, end - begin)
            case Wait(storage):
                ledger.arrive(storage)
            case Drop(storage, begin, end):
                ledger.drop(2 * position, storage, end - begin)
        rows.append((begun_bytes, ledger.held_bytes, ledger.rested_bytes))
        ledger.die(2 * position + 1, program.dies.get(position, ()))
    foreknown = Foreknown(
        names=tuple([item.name if isinstance(item, Call) else None for item in program.instructions]),
        waits=frozenset([at for at, item in enumerate(program.instructions) if isinstance(item, Wait)]),
        changes=np.array(ledger.changes, dtype=np.int64).reshape(-1, 3),
        peak_bytes=peak_bytes([0, *(device for _, device, _ in ledger.changes)]),
    )
    begun, risen, rested = zip(*rows, strict=True) if rows else ((), (), ())
    return Course(foreknown, begun, risen, rested)


class _Ledger:
    """What is on the device and in the next tier by now."""

    def __init__(self, program: Program) -> None:
        self._program = program
        calls = [item for item in program.instructions if isinstance(item, Call)]
        born = {result.born for call in calls for result in call.results if result is not None}
        tensors = {item.storage for item in program.geometry.values() if item.dtype is not None}
        self._there = tensors - born
        self._arriving = set[str]()
        self._resting = {name: size for name, size in program.sizes.items() if name in self._there & program.stowed}
        self.held_bytes = self.rested_bytes = 0
        self.changes = [(0, 0, size) for size in self._resting.values()]

    def _note(self, moment: int, device: int, tier: int = 0) -> None:
        self.held_bytes += device
        if device or tier:
            self.changes.append((moment, device, tier))

    def call(self, moment: int, call: Call) -> None:
        made = [item for item in call.results if item is not None and item.geometry.dtype is not None]
        born = {item.born: item.size_bytes for item in made if item.born is not None}
        self._there |= born.keys()
        cost = self._program.costs.get(call.captured)
        workspace = 0 if cost is None else cost.workspace_bytes
        self._note(moment, sum(born.values()) + workspace)
        self._note(moment + 1, -workspace)

    def rest(self, moment: int, storage: str, size_bytes: int) -> None:
        """A second copy takes the place of the first."""
        more = size_bytes - self._resting.get(storage, 0)
        if more > 0:
            self._resting[storage] = size_bytes
            self._note(moment, 0, more)

    def come_back(self, moment: int, storage: str, size_bytes: int) -> None:
        self._arriving.add(storage)
        self._note(moment, size_bytes)

    def arrive(self, storage: str) -> None:
        if storage in self._arriving:
            self._arriving.remove(storage)
            self._there.add(storage)

    def drop(self, moment: int, storage: str, size_bytes: int) -> None:
        if size_bytes < self._program.sizes[storage] or storage in self._program.lasting:
            self.rested_bytes += size_bytes
            self._note(moment, -size_bytes)
        else:
            self._release(moment, storage)

    def die(self, moment: int, storages: Iterable[str]) -> None:
        for storage in storages:
            self._release(moment, storage)
            self._note(moment, 0, -self._resting.pop(storage, 0))

    def _release(self, moment: int, storage: str) -> None:
        if storage in self._there:
            self._there.remove(storage)
            size = self._program.sizes[storage]
            self.rested_bytes += size if size >= arena.LEAST_BYTES else 0
            self._note(moment, -size)
