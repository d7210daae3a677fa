"""What is a step to whoever divides it among devices? Calls of operators on named tensors, views among them.

A graph (`ir.graph`) knows storages and bytes in them, and no calls that make views. Whoever cuts tensors has to know
how a view's dimensions come from those of what it views, so here each call has whole tensors as operands and results.
A write in place is a call whose result has the name of the operand: both are the same tensor, and are cut alike.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from outgrow.ir.graph import Symbol
from outgrow.operators.tdl import OperatorCall, Shape

HOST = Symbol("host")
"""Stands in a call for a number that is only known when the step runs."""
GATHERED = "outgrow.gathered.default"
"""The operator whose result is a parameter, held for all of its uses in a step; see `frontends.workers.gathers`."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the step; one that is `lasting` is there before the step and after it.

    `viewed` is the tensor whose memory it shares: itself, if it is no view. One that is `whole` is never cut: a batch,
    which every worker is given, what the step returns, and what is written while a view of it is in use. `trained` are
    parameters; `held` names the call of `GATHERED` that made the tensor, or from whose result alone it was made.
    """

    name: str
    shape: Shape
    item_bytes: int
    viewed: str
    lasting: bool = False
    whole: bool = False
    trained: bool = False
    held: str | None = None
    dtype: str = "float32"

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements."""
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True, slots=True)
class Node:
    """A call, and the names of its operands, by position, and of its results.

    `written` are the positions of operands that it writes and that are no results. One that is `whole` is never cut.
    """

    name: str
    call: OperatorCall
    operands: tuple[str, ...]
    results: tuple[str | None, ...]
    written: tuple[int, ...] = ()
    whole: bool = False

    @property
    def tensors(self) -> Iterator[str]:
        """The names of its operands and results."""
        return (name for name in (*self.operands, *self.results) if name is not None)

    @property
    def rewritten(self) -> Iterator[str]:
        """The names of tensors that it writes and that were there before."""
        yield from (name for name in self.results if name is not None and name in self.operands)
        yield from (self.operands[at] for at in self.written)


@dataclass(frozen=True)
class Dataflow:
    """The nodes of a step in their order, its tensors by name, and those that are its outputs, by number."""

    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[str | None, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}
