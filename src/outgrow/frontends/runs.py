"""What is kept of the runs of one captured step?"""

from dataclasses import dataclass, field, replace

from outgrow.runtime.recording import Held

SLACK_BYTES = 8 << 20
"""What a process may take more from call to call: the heap is never twice the same."""


@dataclass(frozen=True)
class Shown:
    """What a run has shown of memory.

    The process took `overhead_bytes` beyond what was planned. Beside the step it held `begun_bytes` when the run began,
    of which at most `kept_bytes` could not be given back; and `held_bytes` when it had ended, if that was looked at,
    else the same as when it began. If a program exceeded the budget, it `binds` the plans of its step until its next
    run.
    """

    overhead_bytes: int
    kept_bytes: int
    begun_bytes: int
    held_bytes: int
    binds: bool = False

    @property
    def least_bytes(self) -> int:
        """What was held at least when the run took most."""
        return min(self.begun_bytes, self.held_bytes)

    def own_bytes(self, kept_bytes: int) -> int:
        """What the run took beyond what was held, if `kept_bytes` are held by now.

        What came before or during the run and has stayed is not its own. It may have come after the run took most, so
        what is its own is not known to be less than the slack.
        """
        least = min(self.kept_bytes, self.held_bytes)  # what went may have gone before the run took most
        taken, stayed = self.overhead_bytes - least, min(kept_bytes, self.held_bytes) - least
        return max(0, taken - max(0, stayed), min(taken, SLACK_BYTES))


@dataclass
class AsWritten:
    """What is kept of the runs of the user's own function.

    When it began, `begun_bytes` were taken, and `rested_bytes` kept for it; it took at least `risen_bytes` more.
    `has_exceeded` says that it took more than the budget, and is not trusted again.
    """

    begun_bytes: int = 0
    rested_bytes: int = 0
    risen_bytes: int = 0
    has_exceeded: bool = False


@dataclass
class Runs:
    """What is kept of the runs of one captured step."""

    count: int = 0
    process_bytes: int = 0
    """What the process took in the last run."""
    shown: Shown | None = None
    """What the last run tells of memory."""
    kept_bytes: int = 0
    """At most so much of `held_bytes` could not be given back."""
    held_bytes: int = 0
    """What was held beside the step when it was called."""
    room_bytes: int | None = None
    """What the call that comes may use for what is planned, if others have taken some of it."""
    is_fresh: bool = True
    """Whether the present plan has yet to run."""
    settled: bool = False
    """Whether the last run showed nothing new."""
    surprises: int = 0
    """Runs that took another time than was predicted."""
    regained: int = 0
    """How often others had let go of much."""
    seconds: float = 0.0
    """What all runs of programs that the host waits for took."""
    planning_seconds: float = 0.0
    """What planning again after runs took."""
    observed: bool = False
    """Whether a program has run, which shows what ops cost."""
    noted: Held | None = None
    """What the program holds, if it may run again from that."""
    forgiven_at: int | None = None
    """The number of the call before which the plan was last forgiven that it exceeded the budget."""
    function: AsWritten = field(default_factory=AsWritten)

    @property
    def binds(self) -> bool:
        """Whether the last run was that of a program, and exceeded the budget: plans that come have room for it."""
        return self.shown is not None and self.shown.binds

    def alike(self) -> "Runs":
        """Return what is known of runs of a step of the same signature before it has run."""
        shown = None if self.shown is None else replace(self.shown, binds=False)
        return Runs(shown=shown, function=AsWritten(has_exceeded=self.function.has_exceeded))
