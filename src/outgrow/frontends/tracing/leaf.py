"""What is a leaf of what a step returns?"""

from dataclasses import dataclass

from torch import Tensor

from outgrow.frontends.user.state import HeldSlot


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor, or a number of the graph, that a step returns as leaf number `index`.

    It may be the tensor that hangs in a `slot` when the step is over, or that was given. It `has_graph` if autograd
    knows how it was made, and if not, may want a gradient all the same.
    """

    index: int
    has_graph: bool
    wants_gradient: bool
    slot: HeldSlot | None

    @staticmethod
    def of(index: int, value: object, slot: HeldSlot | None) -> "Leaf":
        """Return what there is to know of a value that the step has returned."""
        if not isinstance(value, Tensor):
            return Leaf(index, has_graph=False, wants_gradient=False, slot=None)
        has_graph = value.grad_fn is not None
        return Leaf(index, has_graph, wants_gradient=value.requires_grad and not has_graph, slot=slot)
