"""How do gradients lie when they arrive? As whoever makes them likes, which is not known when a part is captured.

A part is captured as if each gradient lay as its result does. Eager mode takes some sums in another order where one
lies otherwise: transposed, or one number for all. So a first run keeps with what it began; where gradients lie
otherwise, the part is captured anew, and its forward pass runs again from there (`frontends.parts`).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from outgrow.frontends.between import versions
from outgrow.frontends.devices import device_of
from outgrow.frontends.joint import hole_of
from outgrow.ir.graph import Graph, Op
from outgrow.runtime.program import Result

Strides: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Beginning:
    """With what a run begins: its inputs, of those that it writes copies, the state of generators, and autocast.

    `reads` are the numbers of the inputs that it does not write, and `versions` theirs.
    """

    inputs: list[object]
    reads: list[int]
    versions: list[int]
    generators: list[tuple[torch.Generator, Tensor]]
    autocasts: list[tuple[str, torch.dtype]]

    @staticmethod
    def of(args: Sequence[object], writes: Sequence[int]) -> "Beginning":
        """Keep what a run on these inputs begins with, of which it writes some."""
        inputs = [
            arg.detach().clone() if at in writes and isinstance(arg, Tensor) else arg for at, arg in enumerate(args)
        ]
        reads = [at for at in range(len(args)) if at not in writes]
        device = device_of(arg.device for arg in args if isinstance(arg, Tensor))
        generators = [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        states = [(generator, generator.get_state()) for generator in generators]
        autocasts = [
            (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
        ]
        return Beginning(inputs, reads, versions(args, reads), states, autocasts)

    def is_unchanged(self) -> bool:
        """Whether nobody has written what the run only read."""
        return self.versions == versions(self.inputs, self.reads)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Be where the run began: with its random numbers, autocast, and gradients enabled."""
        now = [(generator, generator.get_state()) for generator, _ in self.generators]
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for kind, dtype in self.autocasts:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            for generator, state in self.generators:
                generator.set_state(state)
            try:
                yield
            finally:
                for generator, state in now:
                    generator.set_state(state)


def arrived_as(gradients: Sequence[Tensor | None], results: Sequence[Result]) -> list[Strides]:
    """Return how gradients lie, where a program awaits some; as captured those that have not arrived.

    So do those that overlap in another way than by being one number for all.
    """
    return [
        gradient.stride() if gradient is not None and _may_be_kept(gradient) else result.geometry.strides
        for gradient, result in zip(gradients, results, strict=True)
    ]


def are_awaited(found: Sequence[Strides], results: Sequence[Result]) -> bool:
    """Whether gradients lie as a program awaits them; how far apart the elements of one are does not matter."""
    return all(
        size == 1 or one == other
        for strides, result in zip(found, results, strict=True)
        for size, one, other in zip(result.geometry.shape, strides, result.geometry.strides, strict=True)
    )


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
    assert hole is not None, "a part that waits has a hole"
    return graph.ops[: graph.ops.index(hole)]
