"""One thread at a time runs steps of a model, whose weights change places in memory meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

import pytest
from torch import nn
from torch.optim import SGD

from outgrow.errors import OutOfTurn
from outgrow.frontends import one_thread as module
from outgrow.frontends.one_thread import one_thread
from outgrow.frontends.user.training.state import Training
from tests.children import ran


@contextmanager
def training_beside(training: Training) -> Iterator[None]:
    """Another thread runs a step, which calls a step of the same models, until the block ends."""
    begun, over = Event(), Event()

    def train() -> None:
        with one_thread(training), one_thread(training):
            begun.set()
            over.wait()

    thread = Thread(target=train)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_one_thread_at_a_time_runs_steps_of_a_model() -> None:
    """Another one is told; it may run steps of other models, and of this one once the step is over."""
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    with training_beside(Training((model,), ())):
        with (
            pytest.raises(OutOfTurn, match="Another thread runs a step of the same model"),
            one_thread(Training((other, model), ())),
        ):
            pass
        with one_thread(Training((other,), ())):
            pass
    with one_thread(Training((model,), ())):
        pass


FORKED = """
import os
from torch import nn
from outgrow.frontends.one_thread import one_thread
from outgrow.frontends.user.training.state import Training
from tests.frontends.test_one_thread import training_beside

training = Training((nn.Linear(1, 1),), ())
with training_beside(training):
    child = os.fork()
    if child == 0:
        with one_thread(training):
            os._exit(17)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 17, status
with training_beside(training), one_thread(Training((nn.Linear(1, 1),), ())):
    print("went on")
"""


def test_a_process_that_is_forked_off_has_no_other_thread() -> None:
    """What others ran when it was forked runs in its parent alone."""
    found = ran(FORKED)
    assert found.stdout == "went on\n", found.stderr


def shared_module(model: nn.Linear) -> Training:
    return Training((nn.Sequential(nn.Tanh(), model),), ())


def shared_weight(model: nn.Linear) -> Training:
    other = nn.Linear(1, 1)
    other.weight = model.weight
    return Training((other,), ())


def shared_buffer(model: nn.Linear) -> Training:
    other = nn.Module()
    other.register_buffer("scale", model.get_buffer("scale"))
    return Training((other,), ())


@pytest.mark.parametrize("made", [shared_module, shared_weight, shared_buffer])
def test_models_that_share_something_are_one(made: Callable[[nn.Linear], Training]) -> None:
    """A frozen backbone, a tied weight or a buffer may be in either."""
    model = nn.Linear(1, 1)
    model.register_buffer("scale", model.weight.detach().clone())
    with (
        training_beside(Training((nn.Sequential(model),), ())),
        pytest.raises(OutOfTurn, match="shares modules, weights or an optimizer"),
        one_thread(made(model)),
    ):
        pass


def test_steps_that_share_an_optimizer_are_one() -> None:
    """Whatever their models are."""
    optimizer = SGD(nn.Linear(1, 1).parameters())
    with (
        training_beside(Training((nn.Linear(1, 1),), (optimizer,))),
        pytest.raises(OutOfTurn, match="shares modules, weights or an optimizer"),
        one_thread(Training((nn.Linear(1, 1),), (optimizer,))),
    ):
        pass


def test_an_interruption_leaves_no_step_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes just when the step is noted."""
    model = nn.Linear(1, 1)

    class Interrupted:
        """A lock; who first gives it back is interrupted."""

        def __init__(self) -> None:
            self.lock, self.left = Lock(), 1

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_failure: object) -> None:
            self.lock.release()
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    monkeypatch.setattr(module, "_guard", Interrupted())
    with pytest.raises(KeyboardInterrupt), one_thread(Training((model,), ())):
        pass
    assert not module._running
