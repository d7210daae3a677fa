"""Where may a worker hold a whole parameter for a while? From its first use in a step to its last before the update.

There the trace is given a call of `outgrow::gathered`, whose result is its operand. A division may cut that result
otherwise than the parameter, or leave it whole: then all uses share what is received once (`planning.partition`).
"""

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

from outgrow.frontends.tracing.convert import written_nodes
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.training.sharing import address
from outgrow.frontends.user.training.state import ParameterSlot

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_LIBRARY.define("gathered(Tensor parameter) -> Tensor")
_LIBRARY.impl("gathered", torch.clone, "CompositeExplicitAutograd")


def offer_gathers(traced: Traced) -> None:
    """Let the module of a trace call `outgrow::gathered` on each parameter before its first use."""
    graph = traced.module.graph
    order = {node: at for at, node in enumerate(graph.nodes)}
    first_write = {
        address(item.meta["val"]): at
        for node, at in reversed(order.items())
        if node.op == "call_function"
        for item in written_nodes(node)
    }
    placeholders = graph.find_nodes(op="placeholder")
    for node, (slot, tensor) in zip(placeholders, traced.tensors.items(), strict=False):
        if not isinstance(slot, ParameterSlot):
            continue
        end = first_write.get(address(tensor), len(order))
        uses = _gathering(sorted((user for user in node.users if order[user] < end), key=order.__getitem__), tensor)
        if not uses:
            continue
        with graph.inserting_before(uses[0]):
            gathered = graph.call_function(torch.ops.outgrow.gathered.default, (node,))
        gathered.meta["val"] = tensor
        for user in uses:
            user.replace_input_with(node, gathered)


def _gathering(uses: list[fx.Node], parameter: Tensor) -> list[fx.Node]:
    """Return the uses up to the last one that is more than arithmetic element by element (such as weight decay)."""
    while uses and _is_like(uses[-1], parameter):
        uses = uses[:-1]
    return uses


def _is_like(node: fx.Node, parameter: Tensor) -> bool:
    """Whether all results of a call have the shape of a parameter, and none its memory."""
    results = [item for item in pytree.tree_leaves(node.meta.get("val")) if isinstance(item, Tensor)]
    return all(item.shape == parameter.shape and address(item) != address(parameter) for item in results)
