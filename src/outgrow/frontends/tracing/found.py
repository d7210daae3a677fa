"""How does a tensor lie that a step finds outside? The step is captured for that, and right only while it lies so."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from outgrow.frontends.user.sharing import place
from outgrow.frontends.user.state import local
from outgrow.frontends.user.unseen import geometry


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A tensor that the step found outside, the storage that is its memory, and shape, strides and offset in it."""

    tensor: Tensor
    storage: str
    geometry: tuple[object, ...]

    @staticmethod
    def of(tensor: Tensor, storage: str) -> "Found":
        """Return a tensor as it is now."""
        return Found(tensor, storage, _lying(tensor))

    def still_lies(self, owners: Mapping[str, Tensor]) -> bool:
        """Whether it lies as it did in what are the tensors that own the storages now."""
        owner = owners.get(self.storage)
        is_there = owner is None or owner is self.tensor or place(owner) == place(local(self.tensor))
        return is_there and _lying(self.tensor) == self.geometry


def _lying(tensor: Tensor) -> tuple[object, ...]:
    tensor = local(tensor)
    *lies, _ = geometry(tensor)
    return (*lies, tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())
