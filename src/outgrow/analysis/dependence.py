"""Which ops must keep their order?

Two ops conflict iff one writes a storage that the other touches: read after write, write after read, write
after write. Ops that do not conflict may change places, and every op still reads the same bytes. The random
generator is a storage that random ops write, so their order is kept by the same rule.
"""

from outgrow.ir.graph import Graph, Op
from outgrow.operators.effects import quiet


def is_repeatable(graph: Graph, op: Op) -> bool:
    """Return whether `op` may run again: all that its repetition writes are storages of this step."""
    return not any(graph.storages[name].is_persistent for name in graph.written(quiet(op)))
