"""Before which step may a storage be built again? Until what its chain has read is overwritten.

The *chain* of a storage as of one of its writes are the ops that wrote it up to there: what has to be repeated to build
it again. That gives the same bits under the law of recomputation, which `rewriting.recompute.why_not` says of one place
of a draft. Here it is worked out for every chain of a captured graph at once, where a version only grows. That a
storage may be in flight (`ir.flight`) is left to who asks.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from outgrow.analysis.liveness import write_steps
from outgrow.ir.graph import Graph
from outgrow.operators.effects import is_repeatable, quiet


def chain_limits(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return for each write of each storage the last step before which its chain may be repeated; -1: before none.

    >>> from outgrow.ir.text import parse_graph
    >>> chain_limits(
    ...     parse_graph('''
    ... storage x input 8
    ... storage a 8
    ... storage b 8
    ... value %x: x@0 f32[2]
    ... %a: a@0 f32[2] = my.one(%x)
    ... %b: b@0 f32[2] = my.two(%a)
    ... %a1: a@1 f32[2] = aten.relu_.default(%a)
    ... return %b
    ... ''')
    ... )
    {'a': (3, 3), 'b': (2,)}
    """
    writes = write_steps(graph)
    return {name: tuple(_limits(graph, name, writes)) for name in writes}


def _limits(graph: Graph, storage: str, writes: Mapping[str, Sequence[int]]) -> Iterator[int]:
    """Yield the limits of the chains of a storage, one for each op that writes it."""
    limit = len(graph.ops)
    made: set[str] = set()
    for step in writes[storage]:
        op = graph.ops[step]
        repeated = quiet(op)
        made.update(name for name in graph.written_at[step] if graph.born_at.get(name) == step)
        if limit >= 0 and not (is_repeatable(graph, op) and made.issuperset(graph.written(repeated))):
            limit = -1
        for name in repeated.operands if limit >= 0 else ():
            value = graph.values[name]
            if value.storage not in made:
                later = writes.get(value.storage, ())
                overwritten = bisect_left(later, step)
                limit = min(limit, later[overwritten] if overwritten < len(later) else limit)
            elif value.storage != storage and value.version != 0:
                limit = -1
                break
        yield limit if storage in made else -1
