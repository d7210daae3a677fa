"""Which results of a part are inputs, or views of inputs? They are made of the caller's own tensors, behind the part.

So autograd knows that they share memory: a later write to one, in place, is in the history of the other, and their
versions are one.

A view whose input the part reads otherwise, too, gets its gradient by the part nonetheless (`views_read`): in eager
mode what arrives for it is added up with what the part adds to it, and the sum arrives at the input in its turn.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch._C import _autograd
from torch.autograd.graph import GradientEdge, get_gradient_edge

from outgrow.frontends.fake.kernels.sums import inner_nodes


@dataclass(frozen=True, slots=True)
class SameAs:
    """In place of a result that is an input itself, written over: the number of the input."""

    input: int

    def of(self, args: Sequence[object]) -> object:
        """Return the result, given the inputs."""
        return args[self.input]


@dataclass(frozen=True, slots=True)
class ViewOf:
    """In place of a result that is a view of an input: its number, and how the view lies, from the input's begin on."""

    input: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, args: Sequence[object]) -> object:
        """Return the result, given the inputs: by a view whose gradient lies as it does in eager mode, if there is one.

        >>> import torch
        >>> ViewOf(0, (3, 2), (1, 3), 0).of([torch.arange(6).view(2, 3)])
        tensor([[0, 3],
                [1, 4],
                [2, 5]])
        """
        base = args[self.input]
        assert isinstance(base, Tensor), "it was one when the part was captured"
        if self.offset == 0 and prod(self.shape) == base.numel():
            order = _order(base, self.shape, self.strides)
            if order is not None:
                return base.permute(order)
            if base.is_contiguous():
                found = base.view(self.shape)
                if found.stride() == self.strides:
                    return found
        return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset)


def made_of(args: Sequence[object], results: Sequence[object]) -> tuple[object, ...]:
    """Return results with the inputs themselves, or views of them, where these belong."""
    return tuple(item.of(args) if isinstance(item, SameAs | ViewOf) else item for item in results)


def may_be_written(views: Mapping[int, ViewOf], results: Sequence[object], args: Sequence[object]) -> None:
    """Let results of a part that are views of its inputs be written in place, as far as the inputs may be.

    Autograd forbids it for views that a function with several results makes, since it cannot know their histories.
    """
    for number, view in views.items():
        item, base = results[number], args[view.input]
        assert isinstance(item, Tensor), "it is a view"
        assert isinstance(base, Tensor), "it has one"
        default = _autograd.CreationMeta.DEFAULT
        _autograd._set_creation_meta(item, _autograd._get_creation_meta(base) if base._is_view() else default)


def aliases(results: Sequence[object], inputs: Sequence[object]) -> dict[int, ViewOf]:
    """Return, by the numbers of results, those that are views of inputs which autograd differentiates like these."""
    bases = {id(item): at for at, item in enumerate(inputs) if isinstance(item, Tensor) and not item.is_inference()}
    found: dict[int, ViewOf] = {}
    for number, item in enumerate(results):
        if not isinstance(item, Tensor) or item.is_inference() or not item._is_view() or id(item._base) not in bases:
            continue
        at = bases[id(item._base)]
        base = inputs[at]
        assert isinstance(base, Tensor), "it is among them"
        is_alike = (item.dtype, item.is_conj(), item.is_neg()) == (base.dtype, base.is_conj(), base.is_neg())
        if is_alike and item.requires_grad == base.requires_grad:
            offset = int(item.storage_offset() - base.storage_offset())
            found[number] = ViewOf(at, tuple(item.shape), tuple(item.stride()), offset)
    return found


def views_read(results: Sequence[object], views: Mapping[int, ViewOf], leaves: Mapping[int, GradientEdge]) -> set[int]:
    """Return the numbers of the views of which a part reads the input otherwise, too, for something with a gradient.

    `leaves` are where gradients of the inputs arrive, by their numbers. Where a view is all that is read of an input,
    its gradient arrives as in eager mode past the part.
    """
    found = {number: view for number, view in views.items() if view.input in leaves}
    others = [item for at, item in enumerate(results) if at not in views and isinstance(item, Tensor)]
    edges = [get_gradient_edge(item) for item in others if item.requires_grad]
    read = {edge.node for edge in edges} | {after for node in inner_nodes(edges) for after, _ in node.next_functions}
    counts = Counter(view.input for view in found.values())
    return {number for number, view in found.items() if counts[view.input] > 1 or leaves[view.input].node in read}


def _order(base: Tensor, shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """Return the order of the dimensions of a tensor that gives this shape and these strides, if there is one."""
    rest, found = [*zip(base.shape, base.stride(), range(base.dim()), strict=True)], list[int]()
    for size, stride in zip(shape, strides, strict=True):
        at = next((item for item in rest if item[:2] == (size, stride)), None)
        if at is None:
            return None
        rest.remove(at)
        found.append(at[2])
    return None if rest else found
