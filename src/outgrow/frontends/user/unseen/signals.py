"""When does a signal interrupt a step that is captured? In the user's code; never in an operator, nor in our own code.

Python calls the handler of a signal between any two of its instructions. What the handler raises, `KeyboardInterrupt`
for one, would leave torch by ways that it has not foreseen, or what puts the user's tensors back half done. So a signal
that comes there waits for the next operator, or for the end of the capture.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from traceback import walk_stack
from types import FrameType
from typing import Any, TypeAlias

import outgrow

_Handler: TypeAlias = Callable[[int, FrameType | None], Any]

_OURS = tuple(outgrow.__path__)


@dataclass(frozen=True)
class Signals:
    """The handlers of the user's program, and the numbers of signals that have not been passed to them yet."""

    handlers: dict[int, _Handler] = field(default_factory=dict[int, _Handler])
    waiting: list[int] = field(default_factory=list[int])

    def came(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal to its handler, or let it wait."""
        if _is_in_users_code(frame):
            self.handlers[number](number, frame)
        else:
            self.waiting.append(number)

    def heard(self) -> None:
        """Pass on what waits; what a handler raises is raised."""
        while self.waiting:
            number = self.waiting.pop(0)
            self.handlers[number](number, sys._getframe())


def in_users_code(function: Callable[..., object], /, *args: Any, **kwargs: Any) -> object:
    """Call a function of the user's, which a signal may interrupt."""
    return function(*args, **kwargs)


@contextmanager
def signals_waiting() -> Iterator[Signals]:
    """Within this context signals interrupt only the user's code; those that wait are passed on by `heard`, or at last.

    Python calls handlers in the main thread; in another one nothing happens here.
    """
    signals = Signals()
    if current_thread() is not main_thread():
        yield signals
        return
    found = ((number, signal.getsignal(number)) for number in signal.valid_signals())
    signals.handlers.update({number: handler for number, handler in found if callable(handler)})
    for number in signals.handlers:
        signal.signal(number, signals.came)
    try:
        yield signals
    finally:
        for number, handler in signals.handlers.items():
            signal.signal(number, handler)
        signals.heard()


def _is_in_users_code(frame: FrameType | None) -> bool:
    """Whether the innermost frame of ours is the one that called the user's function."""
    own = (inner.f_code for inner, _ in walk_stack(frame) if inner.f_code.co_filename.startswith(_OURS))
    return next(own, None) is in_users_code.__code__
