"""Where does a step turn from its forward pass to its backward pass, and what waits from the one for the other?

The papers find the two passes by names that the user gives to scopes. A captured step has none, so the turn is the
first op that only a backward pass holds:

    1. the seed of automatic differentiation: `ones_like` of a scalar that the step has made (the loss)
    2. an operator that is named after the one it differentiates: `..._backward`
    3. an op that brings the gradient of a parameter into being

whichever comes first; where there is none, the op after the one with the most live bytes. A step with several
backward passes turns at the first of them: what is computed after it counts as backward.

A *map* is a storage that the forward pass writes and the backward pass reads. It rests in gaps before each of its
uses in the backward pass, as long as nothing writes it there.
"""

import numpy as np

from outgrow.analysis.liveness import Gap, live_bytes, write_steps
from outgrow.ir.graph import Graph, Op, Role
from outgrow.planning.published.profile import Profile


def turn_of(graph: Graph) -> int:
    """Return the step of the first op of the backward pass; the number of ops if no pass can be told.

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 8
    ... storage a 8
    ... storage b 8
    ... value %x: x@0 f32[2]
    ... %a: a@0 f32[2] = aten.relu.default(%x)
    ... %b: b@0 f32[2] = aten.threshold_backward.default(%a, %x)
    ... return %b
    ... ''')
    >>> turn_of(graph)
    1
    """
    for step, op in enumerate(graph.ops):
        if _is_seed(graph, op) or "backward" in op.operator or _bears_gradient(graph, op):
            return step
    return int(np.argmax(live_bytes(graph, {}))) + 1 if graph.ops else 0


def maps(profile: Profile, graph: Graph, turn: int) -> dict[str, tuple[Gap, ...]]:
    """Return, for each map that may leave the device, its gaps before uses in the backward pass; oldest map first."""
    writes = write_steps(graph)
    found: dict[str, list[Gap]] = {}
    for gap in profile.gaps:
        made = [step for step in writes.get(gap.storage, ()) if step <= gap.begin]
        if made and made[-1] < turn <= gap.end:
            found.setdefault(gap.storage, []).append(gap)
    oldest = sorted(found, key=lambda name: writes[name][0])
    return {name: tuple(found[name]) for name in oldest}


def _is_seed(graph: Graph, op: Op) -> bool:
    if op.operator != "aten.ones_like.default":
        return False
    values = [graph.values[name] for name in op.operands]
    return any(value.shape == () and value.storage in graph.born_at for value in values)


def _bears_gradient(graph: Graph, op: Op) -> bool:
    return any(graph.storages[name].role is Role.GRADIENT for name in graph.born(op))
