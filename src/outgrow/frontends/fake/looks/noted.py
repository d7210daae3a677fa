"""What is noted of fake tensors, until something is written into their memory?"""

from collections.abc import Iterable, MutableMapping
from typing import Generic, TypeVar

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from outgrow.frontends.user.training.sharing import place

T = TypeVar("T")


class Noted(Generic[T]):
    """Something about each of some tensors, for as long as the tensor is there and its memory as it was."""

    def __init__(self) -> None:
        self._of: MutableMapping[Tensor, T] = WeakIdKeyDictionary()
        self._places: set[int] = set()

    def note(self, tensor: Tensor, what: T) -> None:
        """Note something about a tensor."""
        self._of[tensor] = what
        self._places.add(place(tensor))

    def of(self, tensor: Tensor) -> T | None:
        """Return what was noted about a tensor."""
        return self._of.get(tensor)

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether something was noted about a tensor."""
        return tensor in self._of

    def sharing(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors, of which something was noted, that share memory with one."""
        at = place(tensor)
        return [item for item in self._of if place(item) == at] if at in self._places else []

    def forget(self, written: Iterable[Tensor]) -> None:
        """Forget every tensor that shares memory with one that may be written."""
        touched = {place(tensor) for tensor in written} & self._places if self._places else ()
        if touched:
            for tensor in [tensor for tensor in self._of if place(tensor) in touched]:
                del self._of[tensor]
            self._places -= touched
