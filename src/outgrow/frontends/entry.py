"""What is kept for one signature of a step, and what serves a call?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.utils._pytree as pytree
from torch import nn

from outgrow.frontends.runs import SLACK_BYTES, Runs
from outgrow.frontends.tracing.captured import Captured, Given
from outgrow.frontends.tracing.signature import Seen, glance
from outgrow.frontends.user.training.state import Training
from outgrow.planning.planned import Planned
from outgrow.runtime.program import Program


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call of a step."""

    args: Sequence[object]
    kwargs: Mapping[str, object]

    @property
    def leaves(self) -> list[object]:
        """What is in them: in dataclasses, too, once a signature has looked at these."""
        return pytree.tree_leaves((self.args, self.kwargs))

    def seen(self, training: Training) -> Seen:
        """Return what is quickly seen of the call."""
        return glance(training.models, training.optimizers, self.args, self.kwargs)


@dataclass(frozen=True)
class Runnable:
    """A plan and its program, or the user's own function, which runs instead where room is ample.

    The program needs `needed_bytes` for what was planned, and a run is expected to take `unplanned_bytes` beyond that,
    and beyond what is held beside it.
    """

    planned: Planned
    program: Program
    needed_bytes: int
    unplanned_bytes: int
    runs_as_written: bool

    @property
    def capacity_bytes(self) -> int:
        """What the plan may use of the budget."""
        return self.planned.plan.budget.capacity_bytes


@dataclass(eq=False)
class Entry:
    """What is kept for one signature: the captured step, its plan, and what its runs have shown.

    Entries are numbered as they are made. `seen` is what was seen of the call, and `shapes` are those of its batch;
    `new_floor_bytes` is the floor before a run had shown the overhead, with a margin for other processes, `seconds`
    what capturing and planning took in all, and `last_call` the number of the call that it served last. It `has_erred`
    if a run has found a guess of it wrong.
    """

    number: int
    seen: Seen
    captured: Captured
    runnable: Runnable
    runs: Runs
    shapes: tuple[tuple[int, ...], ...]
    new_floor_bytes: int
    seconds: float
    last_call: int
    has_erred: bool = False

    def has_room_for(self, seen: Seen, arguments: Arguments) -> bool:
        """Whether a call runs in the ample room of this entry: its batch is no larger, and it goes the same way."""
        if not (self.runnable.runs_as_written and self.runs.settled and self.seen.covers(seen)):
            return False
        captured = self.captured
        return not captured.questions or captured.is_answered_alike(arguments.leaves)


@dataclass(frozen=True)
class Ample:
    """An entry whose step runs as it is written, in ample room, and what must not change for that.

    That is what is quickly seen (`glance`), but that a batch may be smaller, which parameters are trained, and what the
    process took when the call began (`Beside.taken_bytes`), which shows new layers and other types.
    """

    entry: Entry
    trained: tuple[tuple[nn.Parameter, bool], ...]
    taken_bytes: int

    @staticmethod
    def of(entry: Entry, training: Training, taken_bytes: int) -> "Ample":
        """Return the record to compare later calls with, from the state at the first one."""
        parameters = (parameter for model in training.models for parameter in model.parameters())
        return Ample(entry, tuple((item, item.requires_grad) for item in parameters), taken_bytes)

    def still_holds(self, seen: Seen, arguments: Arguments, taken_bytes: int) -> bool:
        """Whether the entry is right for a call with this `glance`, before which the process takes `taken_bytes`."""
        return (
            taken_bytes <= self.taken_bytes + SLACK_BYTES
            and all(parameter.requires_grad is flag for parameter, flag in self.trained)
            and self.entry.has_room_for(seen, arguments)
        )


@dataclass(frozen=True)
class Served:
    """The entry that is right for a call, and what the call brings for it, if that was looked for.

    It `is_known` to be that of this call, unless there was but a `glance`, as in ample room, where the batch may be
    smaller than that of the entry, or numbers outside differ.
    """

    entry: Entry
    given: Given | None = None
    is_known: bool = True
