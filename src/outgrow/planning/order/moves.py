"""Which moves turn one order of the ops into another? Moves of whole runs of ops, one after the other.

The target is built from its front. Where the next op of the target is next anyway, nothing is done. Otherwise a run is
moved to the end of what is built: the next op, and those after it in the target for as long as they follow each other
in the present order too. What a run passes comes after it in the target, so if the target keeps all conflicts, every
move does. The first op stays first, since a move puts ops behind another.
"""

from collections.abc import Sequence

from outgrow.ir.graph import Graph
from outgrow.plan import Move


def moves_to(graph: Graph, order: Sequence[str]) -> tuple[Move, ...]:
    r"""Return the moves that bring the ops of `graph`, which has no transfers, into an order that keeps its first op.

    >>> from outgrow.ir.text import parse_graph
    >>> lines = [f"storage s{at} 8\n{name}: %v{at}: s{at}@0 f32[2] = my.op()" for at, name in enumerate("abcdef")]
    >>> moves_to(parse_graph("\n".join(lines)), "adfbce")
    (Move(ops=('d', 'f'), after='a'),)
    """
    present = [op.name for op in graph.ops]
    assert list(order[:1]) == present[:1], "a move puts ops behind another, so the first op stays first"
    position = {name: at for at, name in enumerate(present)}
    built: set[str] = set()
    moves: list[Move] = []
    front = at = 0
    while at < len(order):
        while front < len(present) and present[front] in built:
            front += 1
        if order[at] == present[front]:
            built.add(order[at])
            at += 1
            continue
        run = [order[at]]
        while at + len(run) < len(order) and position[order[at + len(run)]] > position[run[-1]]:
            run.append(order[at + len(run)])
        moves.append(Move(tuple(run), order[at - 1]))
        built.update(run)
        at += len(run)
    return tuple(moves)
