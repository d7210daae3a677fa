"""What does one see while a command works? A bar on a terminal; plain lines, one a step, where the output is piped.

step 1/3  loss 1.0986  27.30 s  process 2.10 GiB of 2.22 GiB
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from outgrow.report.output import print_now
from outgrow.units import format_bytes, format_seconds

_STAGES = {
    "build": "building the workload",
    "warm up": "warming up",
    "capture": "capturing the step",
    "compile": "compiling kernels",
    "rehearse": "planning: trying operators",
    "plan": "planning",
    "solve": "planning: solving a programme",
    "search": "planning: searching",
    "step": "training",
    "evaluate": "evaluating",
    "verify": "running operators whole and in pieces",
    "divide": "dividing the step",
    "worker": "planning: the part of one worker",
    "one device": "planning: the step on one device",
    "smallest budget": "planning: the smallest budget",
    "measure device": "measuring arithmetic and memory",
    "measure link": "measuring the link to the spill file",
}
_PICTURES_A_SECOND = 4
"""Each drawing takes the interpreter's lock from the step for a moment."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """What is told of one step: its number, how many there are, its loss if it returned one, seconds and bytes.

    `planning_seconds` of the seconds went into capturing and planning it.
    """

    number: int
    steps: int
    loss: float | None
    seconds: float
    process_bytes: int
    budget_bytes: int
    planning_seconds: float

    def __str__(self) -> str:
        """The line."""
        width = len(str(self.steps))
        loss = "" if self.loss is None else f"  loss {_short(self.loss)}"
        memory = f"process {format_bytes(self.process_bytes)} of {format_bytes(self.budget_bytes)}"
        if self.process_bytes > self.budget_bytes:
            memory += f", {format_bytes(self.process_bytes - self.budget_bytes)} too many"
        planning = f" ({format_seconds(self.planning_seconds)} of it planning)" if self.planning_seconds > 0 else ""
        return f"step {self.number:{width}d}/{self.steps}{loss}  {format_seconds(self.seconds)}{planning}  {memory}"


def _short(loss: float) -> str:
    return f"{loss:.4f}" if not math.isfinite(loss) or 1e-3 <= abs(loss) < 1e5 else f"{loss:.3e}"


class Narrator(ABC):
    """Says what a command does, on a stream."""

    @abstractmethod
    def stage(self, name: str, fraction: float = 0.0) -> None:
        """A stage has come so far; it begins at 0."""

    @abstractmethod
    def step(self, line: StepLine) -> None:
        """A step has ended."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Print a result."""


@contextmanager
def narrator(stream: TextIO) -> Iterator[Narrator]:
    """Yield a narrator that suits the stream: with a bar on a terminal, else plain."""
    if not stream.isatty():
        yield _Plain(stream)
        return
    console = Console(file=stream, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=_PICTURES_A_SECOND) as progress:
        console.show_cursor()  # rich hides it until the end, which a process that is killed does not come to
        yield _Terminal(progress, progress.add_task("starting", total=None))


class _Plain(Narrator):
    """One line a step, and the results."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def stage(self, name: str, fraction: float = 0.0) -> None:
        """Piped output is about results."""

    def step(self, line: StepLine) -> None:
        self.say(str(line))

    def say(self, text: str) -> None:
        print_now(self.stream, f"{text}\n")


class _Terminal(Narrator):
    """A bar below the lines."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task

    def stage(self, name: str, fraction: float = 0.0) -> None:
        description = _STAGES.get(name, name)
        if fraction:
            self.progress.update(self.task, description=description, total=1.0, completed=fraction)
        else:
            self.progress.update(self.task, description=description)

    def step(self, line: StepLine) -> None:
        self.say(str(line))
        self.progress.update(self.task, total=1.0, completed=line.number / line.steps)

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)
