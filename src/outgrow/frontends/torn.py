"""Which steps may run after one has failed amid its updates? None that was compiled before, of what it trains.

Some parameters are one step ahead of others then, in whichever step they are used. A step that is compiled later is
taken to have its state from a checkpoint.
"""

from collections.abc import Iterator
from itertools import count
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from outgrow.errors import TornState
from outgrow.frontends.user.training.state import Training

_MESSAGE = (
    "An earlier step failed while parameters were being updated, so model and optimizer are torn: some parameters are "
    "one step ahead of others. Load the last checkpoint and compile the step anew."
)
_numbers = count()
_torn: WeakKeyDictionary[nn.Module | Optimizer, int] = WeakKeyDictionary()
"""Torn models and optimizers, with the number of the failure."""


class Whole:
    """What a step trains, from when it was compiled."""

    def __init__(self, training: Training) -> None:
        self._training, self._begin = training, next(_numbers)

    def check(self) -> None:
        """Raise `TornState` if a step has failed amid updates of any of it since."""
        if _torn and any(_torn.get(part, -1) > self._begin for part in self._parts()):
            raise TornState(_MESSAGE)

    def tear(self) -> None:
        """Note that a step has failed amid updates."""
        number = next(_numbers)
        for part in self._parts():
            _torn[part] = number

    def _parts(self) -> Iterator[nn.Module | Optimizer]:
        for model in self._training.models:
            yield from model.modules()
        yield from self._training.optimizers
