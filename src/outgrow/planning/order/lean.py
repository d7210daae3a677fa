"""Which order of the ops needs the least memory, if everything that is not in use may be away?

Under a small budget, what waits for the backward pass is away, or not built yet. Memory is then filled by what the ops
of one half of the step hold for each other; the halves meet at the moment of most bytes. So each half is put into the
order of least peak (`reorder`), as if the storages of the other half took no room:

    forward     a storage lives from its birth to its last use in this half
    backward    what was born before this half does not count

A step without updates and gradients has one half. Updates keep their places, since they move forward anyway
(`early_updates`). In a chain of layers the captured order is the best, which is seen at once; where branches cross,
such as in randomly wired cells, another order may be far better.

`Orders` keeps both for all plans of a step, with what can be had for nothing in each; `least_seconds` is the bound over
both.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from outgrow.analysis.updates import first_update
from outgrow.ir.graph import Graph, Role
from outgrow.plan import Move
from outgrow.planning.bound.bound import VARIABLES, bound_seconds
from outgrow.planning.compiled import off_main_thread
from outgrow.planning.free.free import Freed, with_reuses, without_reuses
from outgrow.planning.order.jobs import alone, jobs_of, live_bytes_in
from outgrow.planning.order.moves import moves_to
from outgrow.planning.order.reorder import Effort, lowered
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import apply_laws

_SECONDS = 0.5
"""How long ordering one half may take, on a machine of 2020."""
_MOST_OPS = 10_000
"""Steps of more ops keep the captured order: they have many layers, in a chain."""


@dataclass(frozen=True)
class Orders:
    """The captured graph, then the one in the lean order if that is another, each with the moves that make it.

    They are those of a problem's graph and costs. The lean order is looked for once, when it is first asked for, and so
    is what can be had for nothing in each: plans of one step, for several budgets, share it.
    """

    problem: Problem
    _freed: dict[Hashable, Freed] = field(default_factory=dict[Hashable, Freed], init=False, repr=False)

    def __iter__(self) -> Iterator[tuple[Graph, tuple[Move, ...]]]:
        """Yield each graph with its moves."""
        yield self.problem.graph, ()
        if self.lean is not None:
            yield self.lean

    @cached_property
    def lean(self) -> tuple[Graph, tuple[Move, ...]] | None:
        """The graph in the lean order, and the moves; None if this is the captured order."""
        graph = self.problem.graph
        if len(graph.ops) > _MOST_OPS:
            return None
        moves = off_main_thread(lambda _: _moves(self.problem))
        return (apply_laws(graph, moves), moves) if moves else None

    def freed(self, problem: Problem) -> Freed:
        """Return the graph of a problem, which is one of these, after all free rewrites, and the decisions."""
        is_captured = problem.graph is self.problem.graph
        assert is_captured or (self.lean is not None and problem.graph is self.lean[0]), "the graph is one of these"
        assert problem.costs is self.problem.costs, "orders are those of some costs"
        # all that free rewrites look at besides graph and costs; the budget is not among it
        asked = (
            is_captured,
            problem.minimum_bytes,
            problem.fixed,
            problem.resting,
            problem.anchored,
            problem.in_turn,
        )
        of_reuse = (*asked, problem.stalls, problem.sparing, problem.machine.device.places_results)
        if asked not in self._freed:
            self._freed[asked] = without_reuses(problem)
        if of_reuse not in self._freed:
            self._freed[of_reuse] = with_reuses(problem, self._freed[asked])
        return self._freed[of_reuse]


def least_seconds(problem: Problem, orders: Orders, variables: int = VARIABLES) -> float:
    """Return seconds that no plan in one of the orders can beat, by programmes of at most `variables` variables."""
    return min(bound_seconds(replace(problem, graph=graph), variables) for graph, _ in orders)


def _moves(problem: Problem) -> tuple[Move, ...]:
    """Return the moves from the captured order to the lean one."""
    graph = problem.graph
    jobs = jobs_of(graph, problem.workspace, first_stays=True)
    updates = first_update(graph)
    middle = updates
    if updates < len(jobs) or any(storage.role is Role.GRADIENT for storage in graph.storages.values()):
        bytes_at = live_bytes_in(jobs, range(updates))
        middle = max(range(updates), key=bytes_at.__getitem__, default=0)
    order: list[int] = []
    for begin, end in ((0, middle), (middle, updates)):
        inside = alone(jobs, begin, end)
        found = lowered(inside, list(range(len(inside))), Effort.of(_SECONDS))
        order += [begin + at for at in found]
    order += range(updates, len(jobs))
    return moves_to(graph, [graph.ops[job].name for job in order])
