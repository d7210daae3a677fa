"""Which gradients arrive for a part, and how do they lie? The rest of the loop decides; it is known once they arrive.

A part is captured as if a gradient arrived for each result, laid out like the result, behind the autocast block. If one
lies otherwise, transposed or one number for all, eager mode takes some sums in another order; if none arrives, it
computes nothing; within the block it casts. So a run keeps what it began with; if gradients arrive otherwise, the part
is captured for them, and its forward pass runs again from that beginning (`frontends.parts`). Inputs of other shapes
that come later are captured as that foretells.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from outgrow.frontends.fake.kernels.ambiguous import is_ambiguous
from outgrow.frontends.parts.between import Version, versions
from outgrow.frontends.parts.casting import NO_CASTING, Casting
from outgrow.frontends.parts.joint import hole_of
from outgrow.frontends.user.training.devices import device_of, generators_of
from outgrow.ir.graph import Graph, Op
from outgrow.ir.layout import dense_strides

Strides: TypeAlias = tuple[int, ...]
_MOST_COPIED_BYTES = 16 << 20
"""At most what copies of written inputs may take, once it is known how gradients arrive."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The strides of the gradient for each result that can have one (`telling`; None: none arrives), and autocast."""

    strides: tuple[Strides | None, ...]
    casting: Casting = NO_CASTING


@dataclass(frozen=True)
class Beginning:
    """What a run begins with: its inputs (copies of those that it writes), the state of generators, and autocast.

    `reads` are the numbers of the inputs that it does not write, and `versions` are the versions of these.
    """

    inputs: list[object]
    reads: list[int]
    versions: list[Version]
    generators: list[tuple[torch.Generator, Tensor]]
    casting: Casting

    @staticmethod
    def of(args: Sequence[object], writes: Sequence[int], *, is_first: bool) -> "Beginning | None":
        """Keep what a run begins with; None if the inputs that it writes are large, except for the first run."""
        numbers = frozenset(writes)
        written = [arg for arg in (args[at] for at in writes) if isinstance(arg, Tensor)]
        if not is_first and sum(arg.nbytes for arg in written) > _MOST_COPIED_BYTES:
            return None
        inputs = [
            arg.detach().clone() if at in numbers and isinstance(arg, Tensor) else arg for at, arg in enumerate(args)
        ]
        reads = [at for at in range(len(args)) if at not in numbers]
        device = device_of(arg.device for arg in args if isinstance(arg, Tensor))
        states = [(generator, generator.get_state()) for generator in generators_of(device)]
        return Beginning(inputs, reads, versions(args, reads), states, Casting.now())

    def is_unchanged(self) -> bool:
        """Whether nobody has written what the run only read."""
        return self.versions == versions(self.inputs, self.reads)

    @contextmanager
    def put_into(self, args: Sequence[object]) -> Iterator[None]:
        """Let what the run writes hold what it held at the beginning; behind the block, what it holds now."""
        with ExitStack() as stack:
            for old, arg in zip(self.inputs, args, strict=True):
                if isinstance(old, Tensor) and isinstance(arg, Tensor) and old is not arg:
                    content = arg.data
                    stack.callback(content.copy_, content.clone())
                    content.copy_(old)
            yield

    @contextmanager
    def again(self) -> Iterator[None]:
        """Be where the run began: with its random numbers, autocast, and gradients enabled."""
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self.casting.again())
            for generator, state in self.generators:
                stack.callback(generator.set_state, generator.get_state())
                generator.set_state(state)
            yield


def arrival_of(gradients: Sequence[Tensor | None]) -> Arrival:
    """Return how gradients arrive; one whose elements overlap, other than by strides of 0, counts as contiguous.

    >>> arrival_of([torch.ones(3, 1).T, None, torch.ones(()).expand(2, 3)]).strides
    ((1, 1), None, (0, 0))
    >>> arrival_of([torch.ones(2, 8, 1, 1), torch.ones(2, 8, 1, 1).to(memory_format=torch.channels_last)]).strides
    ((8, 1, 1, 1), (8, 1, 8, 8))
    """
    return Arrival(tuple(None if gradient is None else _strides(gradient) for gradient in gradients), Casting.now())


def _strides(gradient: Tensor) -> Strides:
    like = gradient if _may_be_kept(gradient) else torch.empty(gradient.shape, device="meta")
    return telling(like.shape, like.stride())


@dataclass(frozen=True)
class Foretold:
    """How gradients will arrive for results of any shapes, if they do as they did for those of some.

    `orders` has, for each result of `open`, those that can have a gradient, the dimensions along which its elements lie
    apart, from the one with the largest stride on; None if no gradient arrives. `places` counts the addends that all
    gradients bring to each input, which fewer gradients do not show. `casting` is what autocast will do.
    """

    orders: tuple[tuple[int, ...] | None, ...]
    open: tuple[int, ...]
    places: tuple[int, ...]
    casting: Casting = NO_CASTING

    @staticmethod
    def by(arrival: Arrival, open_results: tuple[int, ...], places: tuple[int, ...]) -> "Foretold":
        """Return what an arrival foretells."""
        orders = tuple(None if found is None else _order(found) for found in arrival.strides)
        return Foretold(orders, open_results, places, arrival.casting)

    def strides(self, shapes: Sequence[Sequence[int]]) -> tuple[Strides | None, ...]:
        """Return the strides of gradients without gaps for results of these shapes.

        >>> Foretold.by(Arrival(((1, 3), None, (0, 0))), (0, 1, 2), (1,)).strides([(5, 2), (4,), (2, 3)])
        ((1, 5), None, (0, 0))
        """
        pairs = zip(self.orders, shapes, strict=True)
        return tuple(None if order is None else dense_strides(shape, order) for order, shape in pairs)


def _order(strides: Strides) -> tuple[int, ...]:
    return tuple(sorted((at for at, stride in enumerate(strides) if stride), key=lambda at: -strides[at]))


def telling(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """Return strides with a 1 for each dimension of size 1, unless kernels read a format off these alone."""
    if is_ambiguous(torch.empty_strided(shape, strides, device="meta")):
        return tuple(strides)
    return tuple(stride if size > 1 else 1 for size, stride in zip(shape, strides, strict=True))


def _may_be_kept(gradient: Tensor) -> bool:
    sized = sorted((stride, size) for size, stride in zip(gradient.shape, gradient.stride(), strict=True) if size > 1)
    reach = 1
    for stride, size in sized:
        if 0 < stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def begin_alike(one: Graph, other: Graph) -> bool:
    """Whether two captured parts do the same before their holes."""
    first, second = _before_hole(one), _before_hole(other)
    names = {name for op in first for name in (*op.operands, *op.results) if name is not None}
    return first == second and all(one.values[name] == other.values[name] for name in names)


def _before_hole(graph: Graph) -> tuple[Op, ...]:
    hole = hole_of(graph)
    return graph.ops if hole is None else graph.ops[: graph.ops.index(hole)]
