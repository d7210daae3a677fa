"""Which storages may leave the device: between two of their uses, and between steps?

    leaves(s)   iff s has at least `minimum_bytes`, is not among the problem's `fixed`, and
                    dies in the step, or is a parameter, optimizer state, an input, or a gradient that outlives the step
    stows(s)    iff s leaves, outlives the step, is used by an op, and is no input (inputs stay the caller's)
    idle(s)     iff s leaves, outlives the step and is no input, and no op uses it, of which there are some; what is a
                    result is not idle

A storage that leaves may be away whenever no op uses it. One that outlives the step and is not stowed is on the device
when the step begins, and when it ends; on an anchored device it does not leave at all.
"""

from collections.abc import Iterable

from outgrow.ir.graph import Graph, Role
from outgrow.planning.problem import Problem

_LASTING = frozenset({Role.PARAMETER, Role.OPTIMIZER, Role.GRADIENT})


def leaving(problem: Problem, graph: Graph) -> frozenset[str]:
    """Return the storages of a graph, a rewriting of the problem's, that may leave between two uses."""
    found: list[str] = []
    for name, storage in graph.storages.items():
        is_mortal = name not in graph.outliving
        is_loose = storage.role in _LASTING or (storage.role is Role.INPUT and not problem.anchored)
        if storage.size_bytes >= problem.minimum_bytes and name not in problem.fixed and (is_mortal or is_loose):
            found.append(name)
    return frozenset(found)


def stowing(graph: Graph, may_leave: Iterable[str]) -> frozenset[str]:
    """Return which of the storages in `may_leave` may rest in the next tier between steps."""
    lasting = graph.outliving.intersection(may_leave, graph.used)
    return frozenset(name for name in lasting if graph.storages[name].role in _LASTING)


def idle(problem: Problem, graph: Graph) -> frozenset[str]:
    """Return the storages of a graph that may rest in the next tier throughout the step."""
    outliving = graph.outliving & leaving(problem, graph) if graph.ops else frozenset[str]()
    unused = outliving - graph.used - graph.kept
    return frozenset(name for name in unused if graph.storages[name].role in _LASTING)
