"""When should a parameter be updated? As soon as its gradient is there, so that the gradient can die.

The ops from the first write to a parameter or to optimizer state onwards are cut into components: ops that
share a storage made among them belong together (one parameter's update). A component moves to directly after the
last op before it that it conflicts with, if a gradient of at least `minimum_bytes` dies earlier for it.
"""

from outgrow.analysis.dependence import latest_dependence
from outgrow.ir.graph import Graph, Op, Role
from outgrow.plan import Move
from outgrow.planning.problem import Problem
from outgrow.rewriting.order import move

_UPDATED = (Role.PARAMETER, Role.OPTIMIZER)


def early_updates(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Move, ...]]:
    """Return the graph with its updates moved forward, and the moves."""
    start = _first_update(graph)
    if start is None:
        return graph, ()
    moves: list[Move] = []
    for component in _components(graph, start):
        if _largest_read(graph, component) < problem.minimum_bytes:
            continue
        names = {op.name for op in component}
        at = [graph.op_positions[name] for name in names]
        earlier = [op for op in graph.ops if graph.op_positions[op.name] < min(at)]
        between = [op for op in graph.ops if min(at) < graph.op_positions[op.name] < max(at) and op.name not in names]
        obstacle = latest_dependence(graph, component, earlier)
        if obstacle is None or obstacle is earlier[-1] or latest_dependence(graph, component, between):
            continue
        decision = Move(tuple(op.name for op in component), obstacle.name)
        graph = move(graph, decision)
        moves.append(decision)
    return graph, tuple(moves)


def _first_update(graph: Graph) -> int | None:
    for step, op in enumerate(graph.ops):
        if any(graph.storages[name].role in _UPDATED for name in graph.written(op)):
            return step
    return None


def _components(graph: Graph, start: int) -> list[list[Op]]:
    """The ops from step `start` on, grouped by the storages written among them; in order."""
    group: dict[str, int] = {}
    components: dict[int, list[Op]] = {}
    for number, op in enumerate(graph.ops[start:]):
        shared = sorted({group[name] for name in graph.touched(op) if name in group})
        home = shared[0] if shared else number
        members = [member for index in shared for member in components.pop(index)]
        components[home] = [*members, op]
        for name in (name for member in components[home] for name in graph.written(member)):
            group[name] = home
    at = graph.op_positions
    return [sorted(ops, key=lambda op: at[op.name]) for ops in components.values()]


def _largest_read(graph: Graph, component: list[Op]) -> int:
    sizes = (
        graph.storages[name].size_bytes
        for op in component
        for name in graph.reads(op)
        if not graph.storages[name].is_persistent
    )
    return max(sizes, default=0)
