"""Which number is a float that Dynamo hands over as a tensor? It does so with floats that have changed between calls.

Such a float, say the rate of a dropout, is an input without axes, and the module asks it for its number (`item`). Where
this is only multiplied with tensors, a capture serves all numbers. Elsewhere an operator needs the number itself: then
the module is captured once for each.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, fx


class Float:
    """A float among the inputs of a module, by its position; its `number` is given for a capture that needs it."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.number: float | None = None

    def item(self, given: Tensor) -> object:
        """Stand in for `Tensor.item` of the input."""
        return given.item() if self.number is None else self.number


def floats_of(module: fx.GraphModule) -> tuple[Float, ...]:
    """Return the floats among the inputs of a module, whose numbers it asks them for from now on."""
    found: list[Float] = []
    for position, given in enumerate(module.graph.find_nodes(op="placeholder")):
        example = given.meta.get("example_value")
        if not (isinstance(example, Tensor) and example.dim() == 0 and example.dtype is torch.float64):
            continue
        asking = [node for node in given.users if node.op == "call_method" and node.target == "item"]
        if asking:
            found.append(Float(position))
        for node in asking:
            node.op, node.target = "call_function", found[-1].item
    if found:
        module.recompile()
    return tuple(found)


def numbers(floats: Sequence[Float], args: Sequence[object]) -> tuple[float, ...]:
    """Return the numbers of floats among the inputs of a call."""
    given = [args[item.position] for item in floats]
    return tuple([float(item.item()) for item in given if isinstance(item, Tensor)])
