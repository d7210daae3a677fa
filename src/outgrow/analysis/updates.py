"""Where do the updates of a step begin? With the first op that writes a parameter or optimizer state."""

from outgrow.ir.graph import Graph, Op, Role

_UPDATED = (Role.PARAMETER, Role.OPTIMIZER)


def is_update(graph: Graph, op: Op) -> bool:
    """Return whether `op` writes a parameter or optimizer state."""
    return any(graph.storages[name].role in _UPDATED for name in graph.written(op))


def first_update(graph: Graph) -> int:
    """Return the step of the first update; the number of ops if there is none."""
    return next((step for step, op in enumerate(graph.ops) if is_update(graph, op)), len(graph.ops))
