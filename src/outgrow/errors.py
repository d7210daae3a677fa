"""Which refusals can a user meet, beside `TypeError` and `ValueError` for wrong arguments? Each says what to do next.

All of them derive from `OutgrowError`, so that a caller can catch the package's refusals in one place.
Nothing here is raised for a bug of ours: that is an `AssertionError` with a message.
"""


class OutgrowError(Exception):
    """A refusal with a reason. The message names what was asked, what was found, and a remedy."""


class InvalidQuantity(OutgrowError, ValueError):
    """A budget or a size that is not a number of bytes, such as "8 bananas", 0 or -1, or one of what is not there."""


class InvalidMachine(OutgrowError):
    """No machine has this name, or the file that describes one is missing, damaged or has rates that cannot be."""


class Infeasible(OutgrowError):
    """No plan exists under the budget.

    `floor_bytes` is the smallest budget for which one exists, `culprit` the op that sets it, `because` in a few words
    what keeps it from being lower.
    """

    def __init__(self, message: str, *, floor_bytes: int, culprit: str, because: str = "") -> None:
        super().__init__(message)
        self.floor_bytes = floor_bytes
        self.culprit = culprit
        self.because = because

    def saying(self, *sentences: str, floor_bytes: int | None = None) -> "Infeasible":
        """Return the same refusal with more sentences, and another floor if there is one."""
        return Infeasible(
            " ".join((str(self), *sentences)),
            floor_bytes=self.floor_bytes if floor_bytes is None else floor_bytes,
            culprit=self.culprit,
            because=self.because,
        )


class Uncapturable(OutgrowError):
    """The step cannot be captured as one graph; the message names the user's file and line."""


class GraphSyntaxError(OutgrowError):
    """A text is not a graph; `line` and `column`, counted from 1, are where it stops being one."""

    def __init__(self, message: str, *, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class InvalidGraph(OutgrowError):
    """A graph breaks a numbered invariant of `outgrow.ir.verify`.

    `invariant` is its number, `position` that of the instruction at fault (None: no single one is).
    """

    def __init__(self, message: str, *, invariant: int, position: int | None = None) -> None:
        super().__init__(message)
        self.invariant = invariant
        self.position = position


class InvalidPlan(OutgrowError):
    """A plan does not belong to the graph or machine it is applied to, or its file is damaged."""


class NotApplicable(OutgrowError):
    """A law's condition does not hold where a plan wants to apply it."""


class TierFailure(OutgrowError, OSError):
    """A memory tier failed: disk full, short read, unwritable folder. Names what and where."""


class DeviceFull(OutgrowError, MemoryError):
    """A device has less memory left than the budget promises: somebody else has taken it."""


class DeviceLost(OutgrowError, RuntimeError):
    """A device has failed, and does nothing any more that this process asks of it."""


class WrongInPieces(OutgrowError):
    """An operator that is run in pieces does not give what it gives as a whole."""


class PeerLost(OutgrowError):
    """Another worker of the same training has ended, or answers no more."""


class Divided(OutgrowError):
    """Workers of one training do not agree: other code, other seeds, other parameters or batches."""


class OutOfTurn(OutgrowError, RuntimeError):
    """Something is asked for too early, once more than it is kept for, or by two threads at once."""


class TornState(OutgrowError):
    """An earlier failure left parameters half updated; the step refuses to go on."""


class ReplayMismatch(OutgrowError):
    """A program that is replayed does not give what was recorded."""


class InvalidWorkload(OutgrowError):
    """A workload file is missing, does not compile, or lacks the function that was named."""
