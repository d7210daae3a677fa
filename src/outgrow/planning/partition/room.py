"""What may workers hold beyond equal shares, where they have room for it, to receive less?

    a parameter that is held     whole, or cut otherwise, for all its uses in a step (`frontends.workers.gathers`)
    a sum as addends             a gradient that is a sum, of tied layers or of steps in time: each worker adds up what
                                 it makes itself, and what workers have is added once, at the end

Source of the second: gradient accumulation, as everybody does it by hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from outgrow.operators.dataflow import GATHERED, Dataflow, Node
from outgrow.operators.strategies import Strategy
from outgrow.planning.partition.footprint import owners

ADDENDS = -2
"""The state of a tensor that is the sum of what workers have."""
ADDED = Strategy("addends", 1, ())
"""The way to run a call that adds, or makes a view: each worker on the addends that it has."""
_VIEWS = ("aten.t.default", "aten.transpose.int", "aten.view.default", "aten.permute.default")


@dataclass(frozen=True)
class Room:
    """What may be held: by tensor and by node the name of the parameter or sum to which it belongs; and these names.

    Of `names`, those that would be held for the shortest time come first.
    """

    held: Mapping[str, str]
    sums: Mapping[str, str]
    adding: Mapping[str, str]
    names: tuple[str, ...]

    def allowing(self, count: int) -> "Room":
        """Return what may be held if only the first `count` names are allowed."""
        names = self.names[:count]
        allowed = frozenset(names)
        held, sums, adding = (
            {name: of for name, of in found.items() if of in allowed} for found in (self.held, self.sums, self.adding)
        )
        return Room(held, sums, adding, names)


NO_ROOM = Room({}, {}, {}, ())
"""Nothing may be held."""


def room_of(step: Dataflow) -> Room:
    """Return what workers of a step may hold."""
    held = {name: tensor.held for name, tensor in step.tensors.items() if tensor.held is not None}
    sums = _sums(step)
    adding = {node.name: sums[node.operands[0]] for node in step.nodes if _is_within(node, sums)}
    owner = owners(step, {node.name: 1.0 for node in step.nodes if node.call.operator == GATHERED})
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, node in enumerate(step.nodes):
        for name in node.tensors:
            found = sums.get(name) or (held.get(name) if owner[name] == held.get(name) else None)
            if found is not None:
                first.setdefault(found, at)
                last[found] = at
    return Room(held, sums, adding, tuple(sorted(first, key=lambda name: last[name] - first[name])))


def _sums(step: Dataflow) -> dict[str, str]:
    """Return the tensors that are sums of gradients, or addends of one, by the sum's name."""
    sizes = {prod(tensor.shape) for tensor in step.tensors.values() if tensor.trained and tensor.shape}
    makers = {name: node for node in step.nodes for name in node.results if name is not None}
    rewritten = {name for node in step.nodes for name in node.rewritten}
    found: dict[str, str] = {}

    def may_be_addend(name: str) -> bool:
        return name in makers and name not in rewritten and name not in step.outputs and not step.tensors[name].whole

    for node in reversed(step.nodes):
        total = node.results[0]
        if not _adds(node) or total is None or prod(step.tensors[total].shape) not in sizes:
            continue
        waiting = [total, *node.operands]
        if not all(map(may_be_addend, waiting)):
            continue
        name = found.get(total, total)
        while waiting:
            addend = waiting.pop()
            found[addend] = name
            maker = makers[addend]
            if maker.call.operator in _VIEWS and may_be_addend(maker.operands[0]):
                waiting.append(maker.operands[0])
    return found


def _adds(node: Node) -> bool:
    """Whether a node adds two tensors of one shape, and scales none."""
    if node.call.operator != "aten.add.Tensor" or len(node.operands) != 2:
        return False
    shapes = {operand.shape for operand in node.call.operands} | set(node.call.shapes)
    scales = [value for _, value in node.call.keywords if value != 1]
    return len(shapes) == 1 and not scales


def _is_within(node: Node, sums: Mapping[str, str]) -> bool:
    """Whether a node adds or views addends of a sum, and makes one."""
    names = {sums.get(name) for name in node.tensors}
    return None not in names and len(names) == 1 and (_adds(node) or node.call.operator in _VIEWS)
