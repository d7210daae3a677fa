"""Which gradients of weights should wait? Those whose input is used again as soon as its own gradient is complete.

    X.weight   reads the gradient of the output and the input x       ->  gradient of the weight
    X.input    reads the gradient of the output and the weight        ->  gradient of the input, as large as x
    ...        adds it to the gradient of another branch
    U          reads x once more (the backward of what made x)

In this order x is there during X.input. If X.weight waits until directly before U, what has to be there instead is the
gradient of the output; where that is smaller than x, less is asked for. So X.input, and what goes on with its result,
move before X.weight. Where other work stands between X.weight and U, all stays as it is.
"""

from outgrow.ir.graph import Graph
from outgrow.operators.parts import operands_of_weight_gradient
from outgrow.plan import Move
from outgrow.planning.problem import Problem
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.order import move
from outgrow.rewriting.rule import required_place


def waiting_weights(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Move, ...]]:
    """Return the graph in which gradients of weights wait for the next use of their input, and the moves."""
    draft: Draft | None = None
    moves: list[Move] = []
    for op in graph.ops:
        operands = operands_of_weight_gradient(op)
        if operands is None:
            continue
        gradient, kept = (graph.storages[graph.values[name].storage] for name in operands)
        if kept.is_persistent or kept.size_bytes < max(problem.minimum_bytes, gradient.size_bytes + 1):
            continue
        draft = draft or Draft(graph)
        decision = _wait(draft, required_place(draft, op.name), kept.name)
        if decision is not None:
            move(draft, decision)
            moves.append(decision)
    return (draft.graph(), tuple(moves)) if draft and moves else (graph, ())


def _wait(draft: Draft, place: Place, storage: str) -> Move | None:
    """The move that lets the op at `place` wait for the next use of `storage`; None if more stands between."""
    if place == draft.first:
        return None
    stay, movers, made = {place}, list[Place](), set[str]()
    other = draft.following(place)
    while draft.item(other) is not None and storage not in draft.touched(other):
        if not stay.isdisjoint(draft.conflicts(other)):
            stay.add(other)
        elif not made or not made.isdisjoint(draft.touched(other)):
            movers.append(other)
            made.update(draft.written(other))
        else:
            return None
        other = draft.following(other)
    if draft.item(other) is None or not movers:
        return None
    return Move(tuple(draft.op(mover).name for mover in movers), draft.op(draft.preceding(place)).name)
