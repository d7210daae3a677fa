"""Where do the updates of a step begin? With the first op that writes a parameter or optimizer state.

A step that fails before can be repeated, if what it has written by then is put back.
"""

from outgrow.ir.graph import Graph, Op, Role

_UPDATED = (Role.PARAMETER, Role.OPTIMIZER)


def is_update(graph: Graph, op: Op) -> bool:
    """Return whether `op` writes a parameter or optimizer state."""
    return bool(updated(graph, op))


def updated(graph: Graph, op: Op) -> list[str]:
    """Return the storages of parameters and optimizer state that `op` writes, in order."""
    return [name for name in graph.written(op) if graph.storages[name].role in _UPDATED]


def first_update(graph: Graph) -> int:
    """Return the step of the first update; the number of ops if there is none."""
    return next((step for step, op in enumerate(graph.ops) if is_update(graph, op)), len(graph.ops))


def written_before_updates(graph: Graph) -> frozenset[str]:
    """Return the storages that may be written before the first update, in whichever order the ops of `graph` run.

    Left out is what only ops write that use what an update leaves, such as a moving average of the parameters.
    """
    behind: set[str] = set()
    found: set[str] = set()
    for op, touched, written in zip(graph.ops, graph.touched_at, graph.written_at, strict=True):
        if is_update(graph, op) or not behind.isdisjoint(touched):
            behind.update(written)
        else:
            found.update(written)
    return frozenset(found)
