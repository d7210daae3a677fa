"""What does each instruction do to values and storages? One record for each, for passes over a graph.

The facts are those of `Graph.reads`, `Graph.written` and `Graph.touched`, worked out once for all instructions.
`Access` is a tuple, because verification makes and compares thousands of them.
"""

from typing import NamedTuple

from outgrow.errors import InvalidGraph
from outgrow.ir.graph import Graph, Instruction, Op, Value


class Access(NamedTuple):
    """What an instruction reads and defines, and the storages that it writes and touches, each once.

    `layouts` are the values of which it asks the layout alone.
    """

    reads: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    written: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    layouts: tuple[Value, ...] = ()


def accesses_of(graph: Graph) -> list[Access]:
    """Return the access of each instruction.

    Raises `InvalidGraph` (invariant 1) for a name that the graph does not declare.
    """
    accesses: list[Access] = []
    for at, item in enumerate(graph.instructions):
        try:
            accesses.append(_access(graph, item))
        except KeyError as unknown:
            message = f"{unknown.args[0]} is not declared"
            raise InvalidGraph(message, invariant=1, position=at) from None
    return accesses


def _access(graph: Graph, item: Instruction) -> Access:
    values, storages = graph.values, graph.storages
    if not isinstance(item, Op):
        return Access(touched=(storages[item.storage].name,))
    reads = tuple([values[name] for name in item.references])
    results = tuple([values[name] for name in item.results if name is not None])
    written = [value.storage for value in results]
    if len(written) != 1 or item.writes:
        written = list(dict.fromkeys(written + [storages[name].name for name in item.writes]))
    touched = dict.fromkeys([value.storage for value in reads] + written)
    return Access(reads, results, tuple(written), tuple(touched), tuple([values[name] for name in item.layouts]))
