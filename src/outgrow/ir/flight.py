"""Which storages must stay as they are between two ops, because bytes of them are on their way between workers?

    EXCHANGE    begins to send what its first operand holds, and returns where what others send will arrive
    ARRIVED     ends that: its operands are the two, and it writes the second

From the one to the other both storages are *in flight*: they are read and written while other ops run.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from outgrow.ir.graph import Graph, Op, result_values

EXCHANGE = "outgrow.exchange.default"
ARRIVED = "outgrow.arrived.default"


def lends(op: Op) -> int:
    """Return 1 for an op after which its storages are in flight, -1 for one that ends this, else 0."""
    return {EXCHANGE: 1, ARRIVED: -1}.get(op.operator, 0)


Flight: TypeAlias = tuple[int, int]
"""From the op that begins an exchange to the one that ends it."""


def is_in_flight(flown: Iterable[Flight], begin: int, end: int) -> bool:
    """Whether one of the flights of a storage covers what lies between two ops."""
    return any(first <= begin and end <= last for first, last in flown)


def flights(graph: Graph) -> Mapping[str, tuple[Flight, ...]]:
    """Return, by storage, between which ops it is in flight: steps, those of ops alone.

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 8
    ... storage wire buffer 16
    ... storage there 8
    ... storage y 8
    ... value %x: x@0 f32[2]
    ... value %wire: wire@0 i64[2]
    ... %there: there@0 f32[2] = outgrow.exchange.default(%x, %wire) writes wire
    ... %y: y@0 f32[2] = aten.relu.default(%x)
    ... %here: there@1 f32[2] = outgrow.arrived.default(%there, %x)
    ... return %here
    ... ''')
    >>> flights(graph)
    {'there': ((0, 2),), 'x': ((0, 2),)}
    """
    begun: dict[str, int] = {}
    found: dict[str, tuple[Flight, ...]] = {}
    for step, op in enumerate(graph.ops):
        if op.operator == EXCHANGE:
            begun.update(dict.fromkeys(result_values(op), step))
        elif op.operator == ARRIVED:
            there, _ = op.references
            for storage in graph.touched_at[step]:
                found[storage] = (*found.get(storage, ()), (begun[there], step))
    return found
