"""What would it cost to recompute a storage for the end of a gap, given what is recomputed already?

    seconds(gap) = the lineage of the storage at the end of the gap
                 + once more for each chosen recomputation that ends within the gap and has the storage as a source

A storage is at hand at a step if it outlives the step, is too small to move, or is live there and not within a gap that
is closed by recomputation. What is not at hand is built again together with its lineage (`lineage`). Choosing a gap
changes what is at hand, hence the seconds of the gaps that end within it and have its storage as a source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from outgrow.analysis.liveness import Gap, lifetimes
from outgrow.planning.problem import Problem
from outgrow.planning.published.lineage import lineage_of


@dataclass(frozen=True, slots=True)
class _Repetition:
    """The storages built again for one gap, what their chains read beside, and the seconds; inf: the law refuses."""

    storages: tuple[str, ...]
    sources: tuple[str, ...]
    seconds: float


class Regeneration:
    """The gaps of the captured graph that are closed by recomputation, and what others would cost."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._lineage, self._lifetimes = problem, lineage_of(problem), lifetimes(problem.graph)
        self._closed: dict[str, list[Gap]] = {}
        self._repeated: dict[str, list[int]] = {}
        self._known: dict[Gap, _Repetition] = {}

    def seconds(self, gap: Gap) -> float:
        """Return what recomputing the storage of a gap before its end takes; infinite if it cannot be done."""
        again = sum(gap.begin < step < gap.end for step in self._repeated.get(gap.storage, ()))
        return self._repetition(gap).seconds * (1 + again)

    def most_saved_per_second(self, gaps: Sequence[Gap]) -> Gap | None:
        """Return the gap with the highest MSPS, or None if none can be recomputed."""
        prices = [self.seconds(gap) / gap.size_bytes for gap in gaps]
        cheapest = min(prices, default=inf)
        return gaps[prices.index(cheapest)] if cheapest < inf else None

    def choose(self, gap: Gap) -> None:
        """Close a gap by recomputation."""
        assert self._repetition(gap).seconds < inf, "only what can be recomputed is chosen"
        self._closed.setdefault(gap.storage, []).append(gap)
        for other, repetition in tuple(self._known.items()):
            if gap.begin < other.end < gap.end and gap.storage in repetition.sources:
                del self._known[other]
        self._repeated.clear()
        for other in self._chosen():
            for source in self._repetition(other).sources:
                self._repeated.setdefault(source, []).append(other.end)

    def rebuilt(self) -> dict[int, tuple[str, ...]]:
        """Return what is built again before which step, oldest first."""
        found: dict[int, tuple[str, ...]] = {}
        for gap in self._chosen():
            names = (*found.get(gap.end, ()), *self._repetition(gap).storages)
            found[gap.end] = self._lineage.oldest_first(names)
        return found

    def _chosen(self) -> tuple[Gap, ...]:
        return tuple(gap for gaps in self._closed.values() for gap in gaps)

    def _repetition(self, gap: Gap) -> _Repetition:
        if gap not in self._known:
            self._known[gap] = self._found(gap)
        return self._known[gap]

    def _found(self, gap: Gap) -> _Repetition:
        def is_at_hand(name: str) -> bool:
            return self._is_at_hand(name, gap.end)

        storages = self._lineage.of(gap.storage, gap.end, is_at_hand)
        if storages is None:
            return _Repetition((gap.storage,), (), inf)
        read = [source for name in storages for source in self._lineage.sources(name, gap.end) or ()]
        sources = tuple(name for name in dict.fromkeys(read) if name not in storages)
        return _Repetition(storages, sources, sum(self._lineage.chain_seconds(name, gap.end) for name in storages))

    def _is_at_hand(self, name: str, step: int) -> bool:
        storage = self._problem.graph.storages[name]
        if storage.is_persistent or storage.size_bytes < self._problem.minimum_bytes:
            return True
        life = self._lifetimes[name]
        is_away = any(gap.begin < step < gap.end for gap in self._closed.get(name, ()))
        return life.birth < step <= life.death and not is_away
