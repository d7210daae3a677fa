"""Before which step may a storage be built again? Until what its chain has read is overwritten.

The *chain* of a storage as of one of its writes are the ops that wrote it up to there: what has to be repeated to build
it again. That gives the same bits under the law of recomputation, which `rewriting.recompute.why_not` says of one place
of a draft. Here it is worked out for every chain of a captured graph at once, where a version only grows. That a
storage may be in flight (`ir.flight`) is left to who asks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from outgrow.analysis.liveness import Gap, write_steps
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
    never, end = -1, len(graph.ops)
    return {
        name: tuple(never if spoilt is None else min(spoilt, default=end) for spoilt in _spoilt(graph, name, writes))
        for name in writes
    }


def spoiling(graph: Graph, rests: Iterable[Gap], steps: Collection[int]) -> set[int]:
    """Return those of `steps` that keep some storage from being built again at the end of one of its rests.

    They write over what the chain of the storage has read. A step counts only if all that stand in the way of one
    storage are among `steps`: without these writes, the storage could be built again.
    """
    writes = write_steps(graph)
    chains: dict[str, list[tuple[int, ...] | None]] = {}
    found: set[int] = set()
    for rest in rests:
        own = writes.get(rest.storage, ())
        if rest.storage not in chains:
            chains[rest.storage] = [*_spoilt(graph, rest.storage, writes)] if own else []
        count = bisect_right(own, rest.begin)
        spoilt = chains[rest.storage][count - 1] if count else None
        early = [step for step in spoilt or () if step < rest.end]
        if all(step in steps for step in early):
            found.update(early)
    return found


def _spoilt(graph: Graph, storage: str, writes: Mapping[str, Sequence[int]]) -> Iterator[tuple[int, ...] | None]:
    """Yield for each op that writes a storage the steps that write over what its chain up to there has read.

    None stands for a chain that never gives the same bits.
    """
    spoilt: tuple[int, ...] = ()
    is_same, made = True, set[str]()
    for step in writes[storage]:
        op = graph.ops[step]
        repeated = quiet(op)
        made.update(name for name in graph.written_at[step] if graph.born_at.get(name) == step)
        is_same = is_same and is_repeatable(graph, op) and made.issuperset(graph.written(repeated))
        for name in repeated.operands if is_same else ():
            value = graph.values[name]
            if value.storage not in made:
                later = writes.get(value.storage, ())
                overwritten = bisect_left(later, step)
                spoilt += tuple(later[overwritten : overwritten + 1])
            elif value.storage != storage and value.version != 0:
                is_same = False
                break
        yield spoilt if is_same and storage in made else None
