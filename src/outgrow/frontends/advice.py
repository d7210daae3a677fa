"""Why does a step take longer than it needs to, and what can its user change about that?

A step that is captured and planned over and over still trains as eager does, so nothing is refused. It is said once, as
a remark, with what is likely the cause. That is looked for in this order: what the step asks of its batch, what it
computes, what is outside it, and the numbers in state that it looks at.
"""

from collections.abc import Sequence

from outgrow.frontends.entry import Entry
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.user.left.outside import Filled
from outgrow.frontends.user.training.state import Training, title
from outgrow.remarks import remark

_MANY = 5
_OFTEN = f"The step has been captured and planned {_MANY} times for batches of the same shapes, which takes time: "
_ANEW = _OFTEN + "something else changes from call to call, {}. Pass it as a tensor, or keep it in a buffer."
_ASKED = _OFTEN + (
    "it looks at what is in its batch or in a buffer, and finds something else from call to call ({}). Write it with "
    "tensor operations, such as torch.where, or let the number be one of a few, such as a multiple of 64."
)
_SOMETHING = (
    "such as a number among the arguments, an attribute or a hook of a module, a setting of torch, or a variable that "
    "the step reads"
)
_LOOKED = _OFTEN + (
    "it looks at {}, where it finds another number from call to call. Calculate with it as a tensor, or let it be one "
    "of a few."
)
_DECIDED = _OFTEN + (
    "it decides by what it computes, and goes another way from call to call ({}). Write it with tensor operations, "
    "such as torch.where."
)
_COUNTED = (
    "The step changes `{}`, which may be part of what it does, so every call is captured and planned anew, which takes "
    "time. Change it after the step, or pass what depends on it as a tensor."
)
_FORGOTTEN = (
    "The step has been called with more shapes than outgrow keeps plans for ({}), or has decided in more ways. One "
    "that is forgotten is captured and planned again when it comes back. Pad batches to fewer shapes, such as "
    "multiples of 64, and decide by tensor operations, such as torch.where."
)
_CROWDED_OUT = (
    "Plans of other shapes, or ways that the step goes, have been forgotten {} times to make room for one more, and "
    "are made again when these come back, which takes time. Raise the memory budget, or pad batches to fewer shapes."
)
_CROWDED_OUT_AGAIN = 2
"""This is said when it happens so many times."""


class Advice:
    """The advice to the user of one step, who is told each piece of it once, not at every call."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._is_told_of_changes = self._is_told_of_shapes = False
        self._crowded_out = 0

    def on_changes(self, entry: Entry, last: Entry | None) -> None:
        """Say if two calls in turn, the last and a new one, change a number outside: then every call is captured anew.

        A step that sets it to the same number in every call changes it in the first alone.
        """
        name = _changes(entry)
        if not self._is_told_of_changes and name is not None and _changes(last) is not None:
            self._is_told_of_changes = True
            remark(_COUNTED.format(name))

    def on_many(self, entry: Entry, kept: Sequence[Entry], leaves: Sequence[object]) -> None:
        """Say if a step is captured over and over for batches of the same shapes: `entry`, one of those kept, is new.

        It is captured for each of the ways in which gradients and state may be there, as a step of accumulation finds
        them; those do not count.
        """
        given = entry.captured.slots.keys()
        others = (other for other in kept if other.shapes == entry.shapes)
        alike = [other.captured for other in others if other.captured.slots.keys() == given]
        if len(alike) == _MANY and not entry.captured.changed:  # of what it changes itself it has been told
            remark(self._cause(entry.captured, alike, leaves))

    def _cause(self, new: Captured, alike: Sequence[Captured], leaves: Sequence[object]) -> str:
        """Return why the captured steps that are `alike`, of which one is new, are not the same."""
        questions = (item.answered_otherwise(leaves, self._training) for item in alike)
        asked = next((found for found in questions if found is not None), None)
        if asked is not None:
            return _ASKED.format(asked.line or "in a library")
        decided = next((line for item in alike if (line := item.decides_otherwise(new)) is not None), None)
        if decided is not None:
            return _DECIDED.format(decided)
        outside = next((name for item in alike if (name := item.outside.other()) is not None), None)
        if outside is not None:
            return _ANEW.format(f"`{outside}`")
        looking = (item for item in alike if not item.guards_hold(self._training))
        slot = next((slot for item in looking for slot in item.counting_slots()), None)
        return _ANEW.format(_SOMETHING) if slot is None else _LOOKED.format(title(slot))

    def on_shapes(self, most: int) -> None:
        """Say that one of the entries has been forgotten, since there are more than these."""
        if not self._is_told_of_shapes:
            remark(_FORGOTTEN.format(most))
            self._is_told_of_shapes = True

    def on_crowding(self) -> None:
        """Say if entries have been forgotten, not for the first time, to make room for one more."""
        self._crowded_out += 1
        if self._crowded_out == _CROWDED_OUT_AGAIN:
            remark(_CROWDED_OUT.format(_CROWDED_OUT_AGAIN))


def _changes(entry: Entry | None) -> str | None:
    """Return the name of a part of the step that a planned call changes, but no truth value: these are only two."""
    if entry is None or entry.runnable.runs_as_written:
        return None
    outside = entry.captured.outside
    counting = {item.location.key for item in (*outside.numbers, *outside.things)}
    changed = [item for item in entry.captured.changed if isinstance(item, Filled) or type(item.value) is not bool]
    return next((item.location.name for item in changed if item.location.key in counting), None)
