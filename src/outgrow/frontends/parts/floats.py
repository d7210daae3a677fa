"""Which number is a float that Dynamo hands over as a tensor? It does so with floats that have changed between calls.

Such a float, say the rate of a dropout, is an input without axes, and the module asks it for its number (`item`). Where
this is only multiplied with tensors, a capture serves all numbers. Elsewhere an operator needs the number itself: then
the module is captured once for each. A region of `torch.utils.checkpoint` may be handed the input, and ask it within.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx
from torch._higher_order_ops.wrap import tag_activation_checkpoint


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
        asking = [*_asking(module, given)]
        if asking:
            found.append(Float(position))
        for owner, node in asking:
            node.op, node.target = "call_function", found[-1].item
            owner.recompile()
    return tuple(found)


def _asking(module: fx.GraphModule, given: fx.Node) -> Iterator[tuple[fx.GraphModule, fx.Node]]:
    """Yield what asks an input of a module for its number, and the module, which may be a region, that it is in."""
    for node in given.users:
        if node.op == "call_method" and node.target == "item":
            yield module, node
        elif node.target is tag_activation_checkpoint:
            region, *handed = node.args
            assert isinstance(region, fx.Node), "Dynamo names the region"
            inner = module.get_submodule(str(region.target))
            assert isinstance(inner, fx.GraphModule), "Dynamo makes it"
            for place, item in zip(inner.graph.find_nodes(op="placeholder"), handed, strict=True):
                if item is given:
                    yield from _asking(inner, place)


def numbers(floats: Sequence[Float], args: Sequence[object]) -> tuple[float, ...]:
    """Return the numbers of floats among the inputs of a call."""
    given = [args[item.position] for item in floats]
    return tuple([float(item.item()) for item in given if isinstance(item, Tensor)])
