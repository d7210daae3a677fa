"""What will a run of a program hold, and when? It is known before it runs, but for the user's own storages.

moment 2k       when instruction k begins
moment 2k + 1   when it is over
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outgrow.analysis.cost import Cost
from outgrow.analysis.timeline import peak_bytes
from outgrow.ir.graph import Drop, SwapIn, SwapOut, Wait
from outgrow.runtime.program import Call, Instruction, Program


@dataclass(frozen=True, repr=False)
class Foreknown:
    """What every run of a program does.

    Each of `changes` is a moment, and the bytes of the device and of the next tier that are taken then, or freed
    (n, 3). The user's storages that the run finds on the device do not count until they are moved or die. At most
    `peak_bytes` are held.
    """

    instructions: tuple[Instruction, ...]
    changes: NDArray[np.int64]
    peak_bytes: int


def foreknown(program: Program, costs: Mapping[str, Cost]) -> tuple[Foreknown, list[int], list[int]]:
    """Return what every run of a program does whose ops have these costs, by name as captured.

    By position, return also what is held when an instruction begins, and once all that it makes is there, without its
    workspace.
    """
    ledger = _Ledger(program, costs)
    begun, risen = list[int](), list[int]()
    for position, item in enumerate(program.instructions):
        begun.append(ledger.held)
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
        risen.append(ledger.held)
        ledger.die(2 * position + 1, program.dies.get(position, ()))
    changes = np.array(ledger.changes, dtype=np.int64).reshape(-1, 3)
    peak = peak_bytes(device for _, device, _ in ledger.changes)
    return Foreknown(program.instructions, changes, peak), begun, risen


class _Ledger:
    """What is on the device and in the next tier by now."""

    def __init__(self, program: Program, costs: Mapping[str, Cost]) -> None:
        self._program, self._costs = program, costs
        calls = [item for item in program.instructions if isinstance(item, Call)]
        born = {result.born for call in calls for result in call.results if result is not None}
        tensors = {item.storage for item in program.geometry.values() if item.dtype is not None}
        self._there = tensors - born
        self._arriving = set[str]()
        self._resting = {name: size for name, size in program.sizes.items() if name in self._there & program.stowed}
        self.held = 0
        self.changes = [(0, 0, size) for size in self._resting.values()]

    def _note(self, moment: int, device: int, tier: int = 0) -> None:
        self.held += device
        if device or tier:
            self.changes.append((moment, device, tier))

    def call(self, moment: int, call: Call) -> None:
        made = [item for item in call.results if item is not None and item.geometry.dtype is not None]
        born = {item.born: item.size_bytes for item in made if item.born is not None}
        self._there |= born.keys()
        cost = self._costs.get(call.captured)
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
            self._note(moment, -self._program.sizes[storage])
