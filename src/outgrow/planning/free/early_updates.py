"""When should a parameter be updated? As soon as its gradient is there, so that the gradient can die.

The ops from the first write to a parameter or to optimizer state onwards are cut into components: ops that
share a storage made among them belong together (one parameter's update, with the count of its steps and what follows
from that). A component moves to directly after the last op before it that it conflicts with, if a gradient of at least
`minimum_bytes` dies earlier for it. Arithmetic on host scalars that no update writes (a learning rate that changes its
sign), which several may share, goes first, to the beginning if it can.
"""

from collections.abc import Sequence

from outgrow.analysis.updates import first_update
from outgrow.ir.graph import Graph, Op
from outgrow.plan import Move
from outgrow.planning.problem import Problem
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.order import move
from outgrow.rewriting.rule import required_place


def early_updates(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Move, ...]]:
    """Return the graph with its updates moved forward, and the moves."""
    ops = graph.ops[first_update(graph) :]
    scalars, others = _scalars(graph, ops)
    large = [one for one in _components(graph, others) if _largest_read(graph, one) >= problem.minimum_bytes]
    if not large:
        return graph, ()
    draft = Draft(graph)
    moves: list[Move] = []
    for component in (*([op] for op in scalars), *large):
        obstacle = _obstacle(draft, [required_place(draft, op.name) for op in component])
        if obstacle is None:
            continue
        decision = Move(tuple(op.name for op in component), obstacle)
        move(draft, decision)
        moves.append(decision)
    return (draft.graph(), tuple(moves)) if moves else (graph, ())


def _obstacle(draft: Draft, component: list[Place]) -> str | None:
    """The last op before a component that it conflicts with, or the first op of all.

    None if the component stands there already, or cannot move as one.
    """
    first, members = component[0], frozenset(component)
    conflicts = [place for own in component for place in draft.conflicts(own) if place not in members]
    earlier = draft.in_order([place for place in conflicts if draft.precedes(place, first)])
    inside = [place for place in conflicts if draft.precedes(first, place) and draft.precedes(place, component[-1])]
    obstacle = earlier[-1] if earlier else draft.first
    return None if inside or obstacle in (first, draft.preceding(first)) else draft.op(obstacle).name


def _scalars(graph: Graph, ops: Sequence[Op]) -> tuple[list[Op], list[Op]]:
    """Return the ops that are arithmetic on host scalars and need none of the others, and the others."""
    scalars: list[Op] = []
    others: list[Op] = []
    made: set[str] = set()
    for op in ops:
        touched = graph.touched(op)
        if made.isdisjoint(touched) and all(graph.storages[name].size_bytes == 0 for name in touched):
            scalars.append(op)
        else:
            others.append(op)
            made.update(graph.written(op))
    return scalars, others


def _components(graph: Graph, ops: Sequence[Op]) -> list[list[Op]]:
    """Ops, grouped by the storages written among them; in order, those groups first that end first."""
    earlier = [*range(len(ops))]  # an op of the same group before each, or itself

    def first_of(number: int) -> int:
        while earlier[number] != number:
            earlier[number] = number = earlier[earlier[number]]
        return number

    writer: dict[str, int] = {}
    for number, op in enumerate(ops):
        for name in graph.touched(op):
            if name in writer:
                first, other = sorted((first_of(number), first_of(writer[name])))
                earlier[other] = first
        writer.update(dict.fromkeys(graph.written(op), number))
    groups: dict[int, list[Op]] = {}
    for number in reversed(range(len(ops))):
        groups.setdefault(first_of(number), []).append(ops[number])
    return [group[::-1] for group in reversed(groups.values())]


def _largest_read(graph: Graph, component: list[Op]) -> int:
    sizes = (
        graph.storages[name].size_bytes
        for op in component
        for name in graph.reads(op)
        if not graph.storages[name].is_persistent
    )
    return max(sizes, default=0)
