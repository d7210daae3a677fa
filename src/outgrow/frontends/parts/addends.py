"""What adds up to a gradient, and in which order? What autograd's nodes return for a leaf, in the order they run in.

The gradient of a tensor that is read several times is a sum. Autograd adds up what arrives, one after the other, and
floating-point sums depend on the order. If a tensor is read both inside and outside of a part of a loop, a part that
returned its own sum would change the brackets: `outside + (first + second)` for `(outside + first) + second`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from outgrow.frontends.fake.kernels.sums import inner_nodes

_MOST = 4
"""A tensor with more addends gets their sum, since each takes memory until the backward pass ends. If it is also read
outside the part, its gradient is then summed in another order than in eager."""


def addends(
    results: Sequence[Tensor], leaves: Sequence[GradientEdge], arriving: Sequence[Tensor]
) -> list[list[Tensor]]:
    """Return for each leaf what adds up to its gradient, as it arrives there; nothing for a leaf without one.

    `leaves` are where gradients arrive, since a tensor that is written over later has another such place. `arriving`
    are the gradients of the results. Where a result is a leaf itself, its gradient is returned as one.
    """
    seen: list[list[Tensor]] = [[] for _ in leaves]
    numbers = {leaf.node: number for number, leaf in enumerate(leaves)}
    with ExitStack() as stack:
        for node, hook in _hooks(results, numbers, seen):
            stack.enter_context(node.register_hook(hook))
        sums = torch.autograd.grad(results, leaves, arriving, allow_unused=True)
    direct = {get_gradient_edge(result).node for result in results}
    return [
        [] if total is None else found if 1 < len(found) <= _MOST and leaf.node not in direct else [total]
        for leaf, found, total in zip(leaves, seen, sums, strict=True)
    ]


def _hooks(
    results: Sequence[Tensor], numbers: dict[Node, int], seen: list[list[Tensor]]
) -> Iterator[tuple[Node, Callable[..., None]]]:
    """Yield each node that returns a gradient of a leaf, and a hook that notes it."""
    for node in inner_nodes(results):
        edges = {at: numbers[after] for at, (after, _) in enumerate(node.next_functions) if after in numbers}
        if edges:
            yield node, partial(_note, edges, seen)


def _note(
    edges: dict[int, int], seen: list[list[Tensor]], gradients: Sequence[Tensor | None], _arrived: object
) -> None:
    """Keep what a node returns for leaves; a hook that returns nothing changes nothing."""
    for at, number in edges.items():
        gradient = gradients[at]
        if gradient is not None:
            seen[number].append(gradient)
