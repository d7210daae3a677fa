"""How does a sum of gradients lie? As what arrived first: autograd adds to it in place, where nobody else has it.

While Python modes are active autograd adds out of place, with the same numbers. But an ambiguous layout
(`frontends.fake.kernels.ambiguous`) would be lost: what a kernel makes of two tensors of one point has other strides in
dimensions of size 1 than the first of them, and the kernels behind go by these. So such a sum is seen through a view
that lies like its first addend. If that is read once more, as where two nodes got one gradient, eager mode adds out of
place as well. Nobody knows before the trace is done (`Sums.shared`), so the step is traced again then.

Whether an addition is autograd's own, and not one of a formula or a hook, is seen by whether the node of which the
gradients are has ended: each is given a hook that notes it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from outgrow.frontends.fake.kernels.ambiguous import is_ambiguous
from outgrow.frontends.user.training.sharing import place

_ADD = torch.ops.aten.add.Tensor
_VIEW = torch.ops.aten.as_strided.default
_ENGINE = "_engine_run_backward"
"""Torch's function that runs a backward pass, whoever asks for it."""


class Sums:
    """What autograd adds up while a step is traced; the sums with the numbers `apart` are made out of place."""

    def __init__(self, apart: frozenset[int] = frozenset()) -> None:
        self._apart = apart
        self._count = 0
        self._views: dict[int, tuple[int, Tensor]] = {}
        """The number of each view, and the view, by the place of the sum, which it holds."""
        self._ended: Node | None = None
        self._runs: Callable[..., Any] = getattr(torch.autograd, _ENGINE)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See the nodes of every backward pass in the block end."""
        with patch.object(torch.autograd, _ENGINE, self._run):
            yield

    def laid(self, func: OpOverload, args: Sequence[object], returned: Any) -> Any:
        """Return what an operator returned; a sum of gradients as a view that lies like the first of them."""
        if func is not _ADD or not self._is_adding():
            return returned
        first, second = args
        assert isinstance(first, Tensor), "autograd adds up tensors"
        self._count += 1
        is_alike = first.stride() == returned.stride() or not is_ambiguous(first)
        if is_alike or first is second or self._count in self._apart:
            return returned
        view = _VIEW(returned, first.shape, first.stride())
        self._views[place(view)] = self._count, view
        return view

    def shared(self, module: fx.GraphModule) -> frozenset[int]:
        """Return the numbers of sums whose first addend is read after them: eager mode did not add to it in place."""
        found = set[int]()
        read_after = set[int]()
        for node in reversed(module.graph.nodes):
            operands = [place(item) for item in map(_tensor, node.all_input_nodes) if item is not None]
            made = _tensor(node)
            if made is not None and node.target is _ADD and place(made) in self._views and operands[0] in read_after:
                found.add(self._views[place(made)][0])
            read_after.update(operands)
        return frozenset(found)

    def _is_adding(self) -> bool:
        """Whether autograd adds what a node has returned to what it has."""
        node = torch._C._current_autograd_node()
        return node is not None and node is self._ended and not torch.is_grad_enabled()

    def _run(self, outputs: Sequence[Tensor | GradientEdge], *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for node in inner_nodes(outputs):
                stack.enter_context(self._noted(node))
            stack.callback(setattr, self, "_ended", None)
            return self._runs(outputs, *args, **kwargs)

    def _noted(self, node: Node) -> RemovableHandle:
        def ended(*_gradients: object) -> None:
            self._ended = torch._C._current_autograd_node()

        return node.register_hook(ended)


def seen_as_they_are(module: fx.GraphModule) -> None:
    """Take views of sums away that differ in strides of size 1 alone: whoever divides a step cuts no such view."""
    for node in module.graph.find_nodes(op="call_function", target=_VIEW):
        (summed,) = node.all_input_nodes
        view, viewed = _tensor(node), _tensor(summed)
        if summed.target is _ADD and view is not None and viewed is not None and _lie_alike(view, viewed):
            node.replace_all_uses_with(summed)
            module.graph.erase_node(node)


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return one.shape == other.shape and all(mine == its for size, mine, its in strides if size > 1)


def inner_nodes(outputs: Sequence[Tensor | GradientEdge]) -> Iterator[Node]:
    """Yield each node of a backward pass once, except leaves; an operator may give several outputs."""
    edges = [item if isinstance(item, GradientEdge) else get_gradient_edge(item) for item in outputs if _begins(item)]
    waiting = list(dict.fromkeys(edge.node for edge in edges))
    known = set(waiting)
    while waiting:
        node = waiting.pop()
        after = {found for found, _ in node.next_functions if found is not None} - known
        known |= after
        waiting += after
        if node.next_functions:
            yield node


def _begins(output: Tensor | GradientEdge) -> bool:
    """Whether a backward pass can begin at an output; where not, torch says so."""
    return isinstance(output, GradientEdge) or output.requires_grad


def _tensor(node: fx.Node) -> Tensor | None:
    found = node.meta.get("val")
    return found if isinstance(found, Tensor) else None
