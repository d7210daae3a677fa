"""Which ops must wait for which? The conflicts between all ops, as the edges of an order.

Two ops conflict iff one writes a storage that the other touches: read after write, write after read, write after
write. Ops that do not conflict may change places, and every op still reads the same bytes. The random generator is a
storage that random ops write, so their order is kept by the same rule.

For each storage, in the order of the graph: a write waits for the write before it and for every read since; a
read waits for the write before it. Two ops conflict only if a path of such edges joins them, so an order of the
ops keeps all conflicts iff it keeps every edge. The graph itself is one such order: edges point forward.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator

from outgrow.ir.graph import Graph


def predecessors(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return, for each op, the numbers of the ops that it waits for, ascending; ops count from 0.

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage w parameter 8
    ... storage a 8
    ... storage b 8
    ... value %w: w@0 f32[2]
    ... %a: a@0 f32[2] = aten.neg.default(%w)
    ... %b: b@0 f32[2] = aten.exp.default(%w)
    ... %w1: w@1 f32[2] = aten.add_.Tensor(%w, %b)
    ... return %a
    ... ''')
    >>> predecessors(graph)
    ((), (), (0, 1))
    """
    uses = zip(graph.touched_at, graph.written_at, strict=True)
    return tuple([tuple(sorted(waits)) for waits in conflicts(uses)])


def conflicts(uses: Iterable[tuple[Iterable[Hashable], Collection[Hashable]]]) -> Iterator[set[int]]:
    """Yield the numbers of those before that each waits for, given what each touches, and what of that it writes."""
    writer: dict[Hashable, int] = {}
    readers: dict[Hashable, list[int]] = {}
    for number, (touched, written) in enumerate(uses):
        waits: set[int] = set()
        for memory in touched:
            if memory in writer:
                waits.add(writer[memory])
            if memory in written:
                waits.update(readers.pop(memory, ()))
                writer[memory] = number
            else:
                readers.setdefault(memory, []).append(number)
        yield waits
