"""What has to be built again for a storage, and which decisions do it?

    chain(s, k)     = the ops before step k that write s
    lineage(s, k)   = s and, of what its chain reads, every storage that is not at hand at step k, with its lineage;
                      none if the law of recomputation refuses one of them there

Asked often, so whether the law would refuse is looked up for the captured graph (`analysis.chains`): repeated ops write
none of its storages. `rebuild_all` goes through the law.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outgrow.analysis.chains import chain_limits
from outgrow.analysis.liveness import write_steps
from outgrow.ir.flight import Flight, flights, is_in_flight
from outgrow.ir.graph import Graph, Op
from outgrow.operators.effects import quiet
from outgrow.plan import Recompute
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import carry_out
from outgrow.rewriting.draft import Draft


@dataclass(frozen=True)
class Lineage:
    """The ops of a captured graph by the storages that they write; steps ascend, one limit of its chain for each.

    `flights` say between which steps a storage is in flight (`ir.flight`).
    """

    graph: Graph
    seconds: Mapping[str, float]
    writes: Mapping[str, Sequence[int]]
    limits: Mapping[str, Sequence[int]]
    flights: Mapping[str, Sequence[Flight]]

    def chain(self, storage: str, step: int) -> tuple[Op, ...]:
        """Return the ops before `step` that write the storage, in the form that a repetition runs."""
        steps = self.writes.get(storage, ())
        return tuple(quiet(self.graph.ops[at]) for at in steps[: bisect_left(steps, step)])

    def chain_seconds(self, storage: str, step: int) -> float:
        """Return the seconds that repeating the chain takes."""
        return sum(self.seconds[op.name] for op in self.chain(storage, step))

    def made(self, chain: Sequence[Op]) -> tuple[str, ...]:
        """Return the storages that the ops of a chain bring into being."""
        return tuple(dict.fromkeys(name for op in chain for name in self.graph.born(op)))

    def sources(self, storage: str, step: int) -> tuple[str, ...] | None:
        """Return the storages that the chain reads beside those it makes; None if the law refuses it at `step`."""
        chain = self.chain(storage, step)
        if not chain or self.limits[storage][len(chain) - 1] < step:
            return None
        if is_in_flight(self.flights.get(storage, ()), step - 1, step):
            return None
        made = self.made(chain)
        read = dict.fromkeys(self.graph.values[name].storage for op in chain for name in op.operands)
        return tuple(name for name in read if name not in made)

    def of(self, storage: str, step: int, is_at_hand: Callable[[str], bool]) -> tuple[str, ...] | None:
        """Return the lineage of a storage at `step`, oldest first; None if it cannot be built again."""
        found: dict[str, None] = {storage: None}
        pending = [storage]
        while pending:
            sources = self.sources(pending.pop(), step)
            if sources is None:
                return None
            missing = [name for name in sources if name not in found and not is_at_hand(name)]
            found |= dict.fromkeys(missing)
            pending += missing
        return self.oldest_first(tuple(found))

    def oldest_first(self, storages: Sequence[str]) -> tuple[str, ...]:
        """Return storages that this step makes in the order of birth, each once."""
        return tuple(sorted(dict.fromkeys(storages), key=lambda name: self.writes[name][0]))


def lineage_of(problem: Problem) -> Lineage:
    """Return the lineage of the problem's captured graph."""
    graph = problem.graph
    seconds = {op.name: problem.seconds_of(op) for op in graph.ops}
    return Lineage(graph, seconds, write_steps(graph), chain_limits(graph), flights(graph))


def rebuild_all(graph: Graph, rebuilt: Mapping[int, Sequence[str]]) -> tuple[Graph, tuple[Recompute, ...]]:
    """Build storages, oldest first, again directly before each of some steps of a captured graph.

    From the last step to the first, so that a later repetition reads what an earlier one has built: the law turns all
    uses behind it to what it makes. Returns the graph and the decisions.
    """
    draft = Draft(graph)
    decisions: list[Recompute] = []
    for step in sorted(rebuilt, reverse=True):
        decisions += _rebuild(draft, rebuilt[step], graph.ops[step].name)
    return draft.graph(), tuple(decisions)


def _rebuild(draft: Draft, storages: Sequence[str], before: str) -> list[Recompute]:
    """The youngest first, and each older one before it, for the same reason; what is not used there is left out."""
    decisions: list[Recompute] = []
    for storage in reversed(storages):
        place = draft.place_of(before)
        assert place is not None, f"{before} is an op of the graph or was repeated just now"
        if all(draft.precedes(use, place) for use in draft.touching(storage)):
            continue
        earlier = draft.preceding(place)
        decision = Recompute(storage, before)
        carry_out(draft, decision)
        decisions.append(decision)
        before = draft.op(draft.following(earlier)).name
    return decisions
