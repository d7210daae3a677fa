"""What does a planner get? A captured graph, its costs, a machine and a budget: one frozen record.

A storage below `minimum_bytes` is not moved: a transfer of it costs more in bookkeeping than it frees. Where a step has
no plan otherwise, those from `least_bytes` on are moved too. Of the storages that outlive the step, those named in
`fixed` are never moved (`leaving` says which others may leave the device). On an *anchored* device what outlives the
step is not where the step has its memory: unless it rests in the next tier between steps, it has room of its own from
the beginning of the step to its end, and does not move. A *quick* plan is the best one of a scan (`search`), without
the search that follows. A solver that a planner asks is stopped after `solver_seconds`. What a planner has to say of
its plan, such as that a solver was stopped, it tells `remark`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Graph, Op
from outgrow.ir.machine import Machine
from outgrow.plan import Budget
from outgrow.planning.names import SOLVER_SECONDS

_PART_BYTES = 2 << 20
"""Memory is lent and taken back in huge pages."""


def silent(_stage: str, _fraction: float) -> None:
    """Report no progress."""


def unheard(_remark: str) -> None:
    """Forget what a planner remarks."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a planner may look at."""

    graph: Graph
    costs: Mapping[str, Cost]
    machine: Machine
    budget: Budget
    minimum_bytes: int = 2 << 20
    piece_bytes: int = 64 << 20
    least_bytes: int = 256 << 10
    fixed: frozenset[str] = frozenset()
    anchored: bool = False
    quick: bool = False
    solver_seconds: float = SOLVER_SECONDS
    progress: Callable[[str, float], None] = field(default=silent, compare=False)
    remark: Callable[[str], None] = field(default=unheard, compare=False)

    def seconds_of(self, op: Op) -> float:
        """Return the seconds of an op, captured or repeated; an op of unknown cost takes none."""
        cost = self.costs.get(op.captured)
        return cost.seconds if cost else 0.0

    @property
    def part_bytes(self) -> int:
        """Where a storage may move in part, what moves grows and shrinks by multiples of this."""
        return min(self.piece_bytes, _PART_BYTES)

    @property
    def workspace(self) -> dict[str, int]:
        """Workspace bytes by captured op name."""
        return {name: cost.workspace_bytes for name, cost in self.costs.items()}
