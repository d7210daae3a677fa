"""Do all workers of a mesh go on? Before each step they compare what they are about to do.

    agree_on    do all serve the call by the same entry, and are batch, random numbers and rates the same?
    compare     where the step is captured: what each is about to capture
    go          all are ready to run it

A worker that cannot go on takes part in the next of these, by which the others are told: nobody waits in vain.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from outgrow.errors import Divided
from outgrow.frontends.workers.exchange import peers_missed

_NONE = -1
"""No entry serves the call. A worker that refuses gives a number below, which says which worker it is."""
_SAME = "All run the same script with the same seed, and pass the whole batch."


_Told: TypeAlias = tuple[Mapping[str, object], int]
"""Facts, and a budget."""


class _Meeting(Enum):
    """What the others do next, or wait in."""

    AGREE = auto()
    COMPARE = auto()
    GO = auto()


@dataclass
class Agreement:
    """What worker `number` of `count` tells the others of a group before each step."""

    group: dist.ProcessGroup
    count: int
    number: int
    _next: _Meeting | None = None
    _facts: int = 0

    def begin(self, facts: int) -> None:
        """Begin a call, of which so many facts are compared."""
        self._next, self._facts = _Meeting.AGREE, facts

    def agree_on(self, entry: int | None, facts: Mapping[str, int]) -> bool:
        """Whether all workers serve the call by this entry. Raises `Divided` if they do, and facts differ."""
        assert len(facts) == self._facts, "that is how many were announced"
        mine = [_NONE if entry is None else entry, *facts.values()]
        least = self._least([*mine, *(-item for item in mine)])
        same = [low == item == -high for low, item, high in zip(least, mine, least[len(mine) :], strict=False)]
        is_served = same[0] and entry is not None
        for what, is_same in zip(facts, same[1:], strict=True):
            if is_served and not is_same:
                raise Divided(f"Workers do not agree on {what}. {_SAME}")
        self._next = _Meeting.GO if is_served else _Meeting.COMPARE
        return is_served

    def compare(self, facts: Mapping[str, object], budget_bytes: int) -> int:
        """Return the smallest of the workers' budgets. Raises `Divided` where facts differ."""
        theirs = self._gathered((facts, budget_bytes))
        found = [item for item in theirs if item is not None]
        if len(found) < self.count:
            raise _refused(theirs.index(None))
        first, _ = found[0]
        for what in facts:
            other = next((worker for worker, (item, _) in enumerate(found) if item[what] != first[what]), None)
            if other is not None:
                raise Divided(f"Workers do not agree on {what}: worker {other} has others than worker 0. {_SAME}")
        self._next = _Meeting.GO
        return min(budget for _, budget in found)

    def go(self) -> None:
        """Wait until all are ready to run the step. Raises `Divided` if one of them refuses."""
        self._least([0])

    def refuse(self) -> None:
        """Tell the others, where they wait for this worker, that it does not go on; nothing if they do not."""
        awaited, number = self._next, _NONE - 1 - self.number
        try:
            match awaited:
                case _Meeting.AGREE:
                    self._least([number, *[0] * (1 + 2 * self._facts)])
                case _Meeting.COMPARE:
                    self._gathered(None)
                case _Meeting.GO:
                    self._least([number])
                case None:
                    pass
        except Divided:
            pass  # one of them does not go on, be it this one

    def _least(self, numbers: list[int]) -> list[int]:
        """Return the least of each of these among all workers; the first is that of an entry."""
        self._next = None
        least = torch.tensor(numbers)
        with peers_missed():
            dist.all_reduce(least, dist.ReduceOp.MIN, group=self.group)
        found: list[int] = least.tolist()
        if found[0] < _NONE:
            raise _refused(_NONE - 1 - found[0])
        return found

    def _gathered(self, mine: _Told | None) -> list[_Told | None]:
        self._next = None
        theirs: list[_Told | None] = [None] * self.count
        with peers_missed():
            dist.all_gather_object(theirs, mine, group=self.group)
        return theirs


def _refused(worker: int) -> Divided:
    return Divided(
        f"Worker {worker} does not go on with this step, so none does: see its own message. Models and optimizers are "
        "as before."
    )


def digest(items: Iterable[object]) -> int:
    """Return a number of 63 bits that is another one where tensors among these differ in shape, type or content."""
    found = 0
    for item in items:
        if isinstance(item, Tensor):
            values = item.detach().resolve_conj().resolve_neg().contiguous()
            kind = f"{tuple(values.shape)} {values.dtype}".encode()
            flat = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
            of_bytes = zlib.crc32(flat.view(torch.uint8).numpy().data, zlib.crc32(kind))
            found = (found * 1_000_003 + of_bytes) % (1 << 63)
    return found
