"""What does a planner get? A captured graph, its costs, a machine and a budget: one frozen record."""

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
    """By the names of captured ops."""
    machine: Machine
    budget: Budget
    minimum_bytes: int = 2 << 20
    """A smaller storage is not moved: a transfer of it costs more in bookkeeping than it frees."""
    piece_bytes: int = 64 << 20
    """What comes back ahead of its use comes in pieces of at most this."""
    least_bytes: int = 256 << 10
    """Where a step has no plan otherwise, storages from this size on are moved too."""
    fixed: frozenset[str] = frozenset()
    """Storages that are never moved; `leaving` says which others may leave the device."""
    resting: frozenset[str] = frozenset()
    """Storages that rest in the next tier throughout the step if no op uses them; where there is no plan otherwise, all
    that may leave do."""
    anchored: bool = False
    """Whether what outlives the step has room of its own all the time, unless it rests in the next tier between steps:
    on a device beside the host, where the step has its memory elsewhere."""
    stalls: bool = True
    """Whether results are written over operands also where that takes longer (`operators.stalls`)."""
    in_turn: bool = True
    """Whether concatenations that could set the floor put one operand after the other into the result."""
    sparing: frozenset[str] = frozenset()
    """Ops that do not write over an operand, since something else is to be built again from it (`free.reuse`)."""
    quick: bool = False
    """Whether the best plan of a scan will do, without the search that follows it (`search`)."""
    solver_seconds: float = SOLVER_SECONDS
    """After this a solver that a planner asks is stopped."""
    progress: Callable[[str, float], None] = field(default=silent, compare=False)
    remark: Callable[[str], None] = field(default=unheard, compare=False)
    """What a planner has to say of its plan, such as that a solver was stopped; `planned` keeps it with the plan."""

    def seconds_of(self, op: Op) -> float:
        """Return the seconds of an op where it does not stall, captured or repeated; none, if its cost is unknown."""
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
