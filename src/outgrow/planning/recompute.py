"""What is worth building again? Storages whose makers are cheap for the bytes that they free.

A candidate is a gap of a storage that the law of recomputation can rebuild before its next use; its price is the
seconds of the chain that made it. Whether it pays is not decided here: `search` asks the simulated schedule.
"""

from dataclasses import dataclass

from outgrow.analysis.liveness import Gap
from outgrow.ir.graph import Graph
from outgrow.plan import Recompute
from outgrow.planning.problem import Problem
from outgrow.planning.swap import Profile
from outgrow.rewriting.recompute import chain_of, why_not


@dataclass(frozen=True, slots=True)
class Candidate:
    """A gap that recomputation would close, and the seconds that its chain repeats."""

    gap: Gap
    decision: Recompute
    seconds: float

    @property
    def seconds_per_byte(self) -> float:
        """The price of one byte freed over the gap."""
        return self.seconds / self.gap.size_bytes


def candidates(problem: Problem, graph: Graph, profile: Profile) -> tuple[Candidate, ...]:
    """Return every gap that can be closed by recomputation, cheapest byte first."""
    found: list[Candidate] = []
    for gap in profile.gaps:
        use = profile.ops[gap.end]
        at = graph.op_positions[use.name]
        chain = chain_of(graph, gap.storage, at)
        if any(op.origin for op in chain) or why_not(graph, gap.storage, chain, at) is not None:
            continue
        seconds = sum(problem.costs[op.captured].seconds for op in chain if op.captured in problem.costs)
        found.append(Candidate(gap, Recompute(gap.storage, use.name), seconds))
    return tuple(sorted(found, key=lambda item: (item.seconds_per_byte, item.gap.begin, item.gap.storage)))
