"""What does the process hold beside a step? All that is neither its baseline nor a tensor of the step, nor rests.

Such are objects of capture and plan, what libraries keep, holes of the heap, and what the program has taken since.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, UntypedStorage

from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.tracing.captured import Given
from outgrow.frontends.user.training.state import Training, local, read


@dataclass(frozen=True)
class Beside:
    """What the process holds beside the steps of one training; its baseline is what it took before they came."""

    training: Training
    platform: Platform
    baseline_bytes: int

    def taken_bytes(self) -> int:
        """What the process takes now beyond its baseline, without what rests for the next step."""
        return self.platform.process_bytes() - self.platform.idle_bytes() - self.baseline_bytes

    def tensor_bytes(self, given: Given, results: Sequence[Tensor] = ()) -> int:
        """What is taken by the tensors with which a step is called, and by its results."""
        return self.platform.held_bytes([*self._storages(given), *(tensor.untyped_storage() for tensor in results)])

    def held_bytes(self, given: Given, results: Sequence[Tensor] = ()) -> int:
        """What is held beside these tensors of a step; below 0 if the process has let go of some of its baseline."""
        own = self.tensor_bytes(given, results)  # first: it gives back what was read of the disk
        return self.taken_bytes() - own

    def kept_bytes(self, given: Given, results: Sequence[Tensor] = ()) -> int:
        """What is still held once all that is free was given back."""
        self.platform.trim()
        return self.held_bytes(given, results)

    def _storages(self, given: Given) -> Iterator[UntypedStorage]:
        """Yield the storages of a step; of a batch that is a view, such as of a data set, what the step sees."""
        yield from given.storages.values()
        for slot in given.captured.stale:
            gradient = read(slot, self.training)
            if isinstance(gradient, Tensor):
                yield local(gradient).untyped_storage()
