"""What is kept for one signature of a step, and what serves a call?"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch.utils._pytree as pytree
from torch import nn

from outgrow.frontends.guided import Runnable
from outgrow.frontends.runs import SLACK_BYTES, Runs
from outgrow.frontends.tracing.captured import Captured, Given
from outgrow.frontends.user.state import Training


@dataclass(eq=False)
class Entry:
    """What is kept for one signature: the captured step, its plan, and what its runs have shown.

    Entries are numbered as they are made. `shapes` are those of the batch, `new_floor_bytes` the floor before a run had
    shown the overhead, with a margin for other processes, `seconds` what capturing and planning took in all, and
    `last_call` the number of the call that it served last.
    """

    number: int
    captured: Captured
    planned: Runnable
    runs: Runs
    shapes: tuple[tuple[int, ...], ...]
    new_floor_bytes: int
    seconds: float
    last_call: int


@dataclass(frozen=True)
class Ample:
    """An entry whose step runs as it is written, in ample room, and what must not change for that.

    That is what is quickly seen (`glance`), which parameters are trained, and what the process took when the call
    began (`Beside.taken_bytes`), which shows new layers and other types.
    """

    entry: Entry
    seen: Hashable
    trained: tuple[tuple[nn.Parameter, bool], ...]
    taken_bytes: int

    @staticmethod
    def of(entry: Entry, seen: Hashable, training: Training, taken_bytes: int) -> "Ample":
        """Return the record to compare later calls with, from the state at the first one."""
        parameters = (parameter for model in training.models for parameter in model.parameters())
        return Ample(entry, seen, tuple((item, item.requires_grad) for item in parameters), taken_bytes)

    def still_holds(self, seen: Hashable, taken_bytes: int) -> bool:
        """Whether the entry is right for a call with this `glance`, before which the process takes `taken_bytes`."""
        return (
            self.entry.planned.runs_as_written
            and self.seen == seen
            and all(parameter.requires_grad is flag for parameter, flag in self.trained)
            and taken_bytes <= self.taken_bytes + SLACK_BYTES
        )

    def still_answers(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether a batch answers what the step has asked of it as before; most steps ask nothing."""
        captured = self.entry.captured
        return not captured.questions or captured.answered_otherwise(pytree.tree_leaves((args, kwargs))) is None


@dataclass(frozen=True)
class Served:
    """The entry that is right for a call, and what the call brings for it, if that was looked for.

    It `is_known` to be that of this call, unless there was but a `glance`, as in ample room, or numbers outside differ.
    """

    entry: Entry
    given: Given | None = None
    is_known: bool = True
