"""Does a step do the same with symbols for numbers as with the numbers? Python tells one from the other.

    isinstance(step, int)        is not true of a symbol
    hash(step)                   raises for one

Two traces of a step are alike if they run the same operators, and what these are given, and what the step leaves,
differ only in that one has symbols where the other has numbers, which are those for which the symbols stand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types

from outgrow.frontends.fake.looks.literals import LIFTS
from outgrow.frontends.tracing.names import DETACHES
from outgrow.frontends.tracing.results import results_of

_FULL = torch.ops.aten.full.default
_SAME = (*LIFTS, *DETACHES)
"""Operators whose result is what they are given."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The nodes of two traces by what is equal for the same: a number; where they make numbers of results, how."""

    nodes: dict[fx.Node, object]
    made: dict[object, int] = field(default_factory=dict[object, int])


@dataclass(frozen=True, slots=True)
class Account:
    """What a step did: the nodes of `module`, what each of its outputs is, and the constants that it leaves beside."""

    module: fx.GraphModule
    outputs: Sequence[object]
    constants: Mapping[object, object]

    def is_like(self, other: "Account") -> bool:
        """Whether a step did the same that was traced with other symbols."""
        pairs = list(zip(ours := _tensor_nodes(self.module), theirs := _tensor_nodes(other.module), strict=False))
        known = _Known({node: at for nodes in (ours, theirs) for at, node in enumerate(nodes)})
        is_same = len(ours) == len(theirs) and all(_are_calls_alike(*pair, known) for pair in pairs)
        return is_same and self._left(known) == other._left(known)

    def _left(self, known: _Known) -> dict[object, object]:
        """Return what the step leaves, by what it is."""
        left = {**self.constants, **dict(zip(self.outputs, results_of(self.module.graph), strict=True))}
        return {what: _described(item, known) for what, item in left.items() if what is not None}


def _tensor_nodes(module: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes of a trace, but for those that calculate with numbers alone."""
    nodes = (node for node in module.graph.nodes if node.op != "output" and not _is_number(node))
    return [node for node in nodes if _single(node) is None]


def _is_number(node: fx.Node) -> bool:
    found = node.meta.get("val")
    return not isinstance(node.target, OpOverload) and isinstance(found, (bool, int, float, *py_sym_types))


def _single(node: fx.Node) -> tuple[object, ...] | None:
    """Return what is in a tensor that is made of one number: torch makes it otherwise of a symbol."""
    if node.target in _SAME and isinstance(source := node.args[0], fx.Node):
        return _single(source)
    if node.target is _FULL and not node.args[0] and (number := _number(node.args[1])) is not None:
        return _in_tensor(torch.full((), number, dtype=node.meta["val"].dtype))
    made = _constant(node) if node.op == "get_attr" else None
    if not isinstance(made, Tensor) or isinstance(made, FakeTensor) or made.is_meta or made.ndim:
        return None
    return _in_tensor(made)


def _in_tensor(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.dtype, _told(tensor.item()))


def _are_calls_alike(one: fx.Node, other: fx.Node, known: _Known) -> bool:
    if one.op != other.op:
        return False
    if one.op == "get_attr":
        return _are_constants_alike(_constant(one), _constant(other))
    own, others = ((pytree.tree_leaves((node.args, node.kwargs))) for node in (one, other))
    is_same = one.op == "placeholder" or one.target is other.target
    return is_same and [_described(item, known) for item in own] == [_described(item, known) for item in others]


def _constant(node: fx.Node) -> object:
    assert isinstance(node.target, str), "a constant has a name"
    return getattr(node.graph.owning_module, node.target)


def _are_constants_alike(one: object, other: object) -> bool:
    """Whether two constants have the same content; there is none in twins of tensors that a step finds."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other)
    has_none = isinstance(one, FakeTensor) or isinstance(other, FakeTensor) or one.is_meta or other.is_meta
    is_same = one.shape == other.shape and one.dtype is other.dtype
    return is_same and (has_none or torch.equal(one, other))


def _described(item: object, known: _Known) -> object:
    """Return something that is equal for the same operand: a tensor by its number, a symbol by what it stands for.

    A number that is made of results, which stands for none, is told by how it is made.
    """
    if isinstance(item, fx.Node) and item in known.nodes:
        return (fx.Node, known.nodes[item])
    single = _single(item) if isinstance(item, fx.Node) else None
    if single is not None:
        return single
    number = _number(item)
    if number is not None or not isinstance(item, fx.Node) or item.op != "call_function":
        return _told(number)
    how = (item.target, *(_described(given, known) for given in pytree.tree_leaves((item.args, item.kwargs))))
    known.nodes[item] = how[0], known.made.setdefault(how, len(known.made))
    return (fx.Node, known.nodes[item])


def _number(item: object) -> Any:
    """Return the number for which a node or a symbol stands, or what it is itself."""
    found = item.meta["val"] if isinstance(item, fx.Node) else item
    return found.node.hint if isinstance(found, py_sym_types) else found


def _told(number: object) -> tuple[object, ...]:
    if isinstance(number, float):
        return (float, number.hex())
    return (type(number), number)
