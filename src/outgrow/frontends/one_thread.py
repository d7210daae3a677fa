"""Which thread may run a step of a model? One at a time: weights change places in memory while a step runs.

Two models that share a module or a weight are one for that, and so are two steps with the same optimizer. What they
share may change between calls, so it is looked for whenever steps meet in time, and only then.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, get_ident

from outgrow.errors import OutOfTurn
from outgrow.frontends.user.training.state import Training

_guard = Lock()


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A step that a thread runs."""

    thread: int
    training: Training

    def parts(self) -> set[int]:
        """Return modules, their tensors, and optimizers, by identity; the thread may change them meanwhile."""
        found = set(map(id, self.training.optimizers))
        waiting = [*self.training.models]
        while waiting:
            module = waiting.pop()
            if id(module) not in found:
                tensors = [*module._parameters.values(), *module._buffers.values()]
                found |= {id(module), *(id(tensor) for tensor in tensors if tensor is not None)}
                waiting += [child for child in [*module._modules.values()] if child is not None]
        return found


_running: dict[_Running, None] = {}


def _forked_off() -> None:
    """In a process that was forked off there is no other thread, whatever its parent's threads run."""
    _running.clear()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forked_off)


@contextmanager
def one_thread(training: Training) -> Iterator[None]:
    """Let this thread alone run steps of these models and optimizers; a step may call another one.

    Raises `OutOfTurn` if another thread runs a step that shares some of them.
    """
    own = _Running(get_ident(), training)
    try:
        with _guard:
            others = [run for run in _running if run.thread != own.thread]
            parts = own.parts() if others else set[int]()
            if not all(parts.isdisjoint(run.parts()) for run in others):
                raise OutOfTurn(
                    "Another thread runs a step of the same model, or of one that shares modules, weights or an "
                    "optimizer with it. Weights change places in memory meanwhile. Let one thread call such steps at a "
                    "time: with a lock around the call, for one."
                )
            _running[own] = None
        yield
    finally:
        with _guard:
            _running.pop(own, None)
