"""Which values of a step depend on what it is given? Those that are computed from it, or drawn; others never change.

A value depends if its memory does: the operators of a trace are gone through in order, and one of which an operand
depends lets all depend that it makes or writes, views of the same memory included. The step is given its arguments, and
the state of models and optimizers; a tensor that it closes over is the same in every call, unless it is written, or
another one is put into its place.
What an operator asks of shapes alone does not count.
"""

from collections.abc import Collection

import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._ops import OpOverload

from outgrow.frontends.tracing.convert import draws, written_nodes
from outgrow.frontends.user.training.sharing import place

_SHAPES_ALONE = frozenset(
    f"aten::{name}"
    for name in (
        "empty_like", "full_like", "ones_like", "zeros_like",
        "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
        "sym_numel", "sym_size", "sym_storage_offset", "sym_stride",
    )
)  # fmt: skip
"""Operators whose results do not depend on the content of their first operand."""


def dependent(module: fx.GraphModule, replaced: Collection[Tensor] = ()) -> frozenset[fx.Node]:
    """Return the nodes of a trace whose results, as they are at its end, depend on what the step is given.

    Tensors that are `replaced` in the step are others in the next one.
    """
    nodes = list(module.graph.nodes)
    written = {at for node in nodes for operand in written_nodes(node) for at in _places(operand)}
    written |= {place(tensor) for tensor in replaced}
    found: set[fx.Node] = set()
    places: set[int] = set()
    for node in nodes:
        if _begins(node, written) or any(operand in found or _places(operand) & places for operand in _read(node)):
            found.add(node)
            places |= _places(node).union(*map(_places, written_nodes(node)))
    return frozenset(node for node in nodes if node in found or _places(node) & places)


def _begins(node: fx.Node, written: set[int]) -> bool:
    """Whether a node gives something that may be different in each call, whatever its operands are."""
    if node.op == "get_attr":
        return bool(_places(node) & written)
    return node.op == "placeholder" or draws(node)


def _read(node: fx.Node) -> list[fx.Node]:
    """Return the operands of whose contents the result of a node is made."""
    is_shaped = isinstance(node.target, OpOverload) and node.target.name().partition(".")[0] in _SHAPES_ALONE
    return [operand for operand in node.all_input_nodes if not is_shaped or operand is not node.args[0]]


def _places(node: fx.Node) -> set[int]:
    """Return the memory in which the results of a node lie."""
    module = node.graph.owning_module
    is_constant = node.op == "get_attr" and module is not None
    value = getattr(module, str(node.target)) if is_constant else node.meta.get("val")
    return {place(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)}
