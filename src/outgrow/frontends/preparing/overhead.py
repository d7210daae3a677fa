"""What does a process take beside what is planned, before a run has shown it, and what does that leave of a budget?"""

from collections.abc import Callable
from dataclasses import replace

from outgrow.analysis.liveness import peak_bytes
from outgrow.errors import Infeasible
from outgrow.ir.graph import Graph
from outgrow.operators.arithmetic import PRODUCTS, value_bytes
from outgrow.plan import Budget
from outgrow.planning.planned import Planned
from outgrow.runtime.freeing import least_bytes as heap_least_bytes

_UNSEEN_SHARE = 0.01
_UNSEEN_BYTES = 24 << 20
_HEAP_SHARE = 0.75
_PACKED_BYTES = 32 << 20
"""What the library of matrix products keeps for parts of an operand, at most."""


def unseen_overhead_bytes(graph: Graph, budget_bytes: int) -> int:
    """Return what a process is expected to take beyond the timeline's peak, before a run has shown it.

    A share of what the step will hold, a larger share of what it holds in small tensors, which leave holes in the
    heap, what the library keeps of the operands of matrix products, and a constant.
    """
    least = heap_least_bytes()
    small = {name: storage for name, storage in graph.storages.items() if storage.size_bytes < least}
    large = {name: replace(storage, size_bytes=0) for name, storage in graph.storages.items() if name not in small}
    held = min(budget_bytes, peak_bytes(graph, {}))
    in_heap = min(held, peak_bytes(replace(graph, storages={**small, **large}), {}))
    factors = [graph.values[name] for op in graph.ops if op.operator in PRODUCTS for name in op.operands]
    packed = min(_PACKED_BYTES, max(map(value_bytes, factors), default=0))
    return int(held * _UNSEEN_SHARE + in_heap * _HEAP_SHARE) + packed + _UNSEEN_BYTES


def within(limit_bytes: int, overhead_within: Callable[[int], int], found: Callable[[Budget], Planned]) -> Planned:
    """Return what is planned for what the overhead leaves of a budget.

    A larger budget may have more overhead, so the floor that `Infeasible` names includes the overhead at that floor.
    """
    overhead = overhead_within(limit_bytes)
    while True:
        try:
            return found(Budget(limit_bytes, overhead))
        except Infeasible as refusal:
            before, overhead = overhead, overhead_within(refusal.floor_bytes)
            if overhead <= before:
                raise
