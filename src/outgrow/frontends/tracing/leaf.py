"""What is a leaf of what a step returns?"""

from dataclasses import dataclass

from torch import Tensor

from outgrow.frontends.user.training.state import HeldSlot


@dataclass(frozen=True, slots=True)
class Kind:
    """How a leaf comes back: it may be the tensor that hangs in a `slot` when the step is over, or that was given.

    It `has_graph` if autograd knows how it was made, and if not, may want a gradient all the same.
    """

    has_graph: bool
    wants_gradient: bool
    slot: HeldSlot | None

    @staticmethod
    def of(value: object, slot: HeldSlot | None) -> "Kind":
        """Return that of a value that the step has returned."""
        if not isinstance(value, Tensor):
            return Kind(has_graph=False, wants_gradient=False, slot=None)
        has_graph = value.grad_fn is not None
        return Kind(has_graph, wants_gradient=value.requires_grad and not has_graph, slot=slot)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor, or a number of the graph, that a step returns as leaf number `index`."""

    index: int
    kind: Kind
