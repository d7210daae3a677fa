"""Checkpoints between segments: keep what crosses their borders, build the rest again, as a planner of this package.

Chen, Xu, Zhang, Guestrin 2016, "Training deep nets with sublinear memory cost", https://arxiv.org/abs/1604.06174.

    the forward pass is cut into k segments
    kept       what is used on both sides of a cut; before a segment's backward pass it is all that is there of it
    repeated   the segment, directly before the first op of the backward pass that needs something from inside it

With n equal layers and k = sqrt(n), k borders and the inside of one segment, n/k layers, are there at once: O(sqrt(n))
memory for one more forward pass. Here the cuts divide the bytes that the forward pass makes evenly, each at the
narrowest point around its place: where the fewest bytes cross. All k up to four times the root of the ops are tried,
and of those that fit the one that repeats the least work is taken.

Departures: the last segment is not repeated, since its backward pass follows at once; what is not needed again is not
repeated; what the law of recomputation refuses (random numbers) and storages below the problem's minimum size are
kept; an op with several large results is repeated for each.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt

from outgrow.analysis.liveness import lifetimes, live_bytes
from outgrow.plan import Decision
from outgrow.planning.floor import require_feasible
from outgrow.planning.problem import Problem
from outgrow.planning.published.lineage import Lineage, lineage_of, rebuild_all
from outgrow.planning.published.phases import turn_of
from outgrow.planning.published.refusal import refusal
from outgrow.planning.published.repetition import live_bytes_with


@dataclass(frozen=True, slots=True)
class _Made:
    """A storage that the forward pass makes and that may be built again: its steps there, and its uses after it."""

    name: str
    size_bytes: int
    birth: int
    last_forward: int
    backward: tuple[int, ...]


@dataclass(frozen=True)
class _Forward:
    """The forward pass: what it makes, the bytes made before each step, and those that cross into each step."""

    lineage: Lineage
    turn: int
    made: tuple[_Made, ...]
    made_bytes: tuple[int, ...]
    crossing_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Trial:
    """What is repeated before which step, and the seconds that takes."""

    rebuilt: Mapping[int, Sequence[str]]
    seconds: float


def sqrt_checkpoint(problem: Problem) -> tuple[Decision, ...]:
    """Return the recomputations of the segments.

    Raises `Infeasible` if the budget is below the floor, or if no number of segments fits.
    """
    live = live_bytes(problem.graph, problem.workspace)
    capacity = problem.budget.capacity_bytes
    require_feasible(problem, problem.graph)
    forward = _forward(problem)
    nearest = problem.graph.ops, live
    for trial in sorted(_trials(forward), key=lambda trial: trial.seconds):
        ops, needed = live_bytes_with(problem, forward.lineage, trial.rebuilt)
        if max(needed) <= capacity:
            graph, decisions = rebuild_all(problem.graph, trial.rebuilt)
            assert max(live_bytes(graph, problem.workspace)) <= capacity, "the law repeats what was counted"
            return decisions
        nearest = min(nearest, (ops, needed), key=lambda found: max(found[1]))
    ops, needed = nearest
    raise refusal(problem, "sqrt_checkpoint", "it moves nothing and keeps what crosses a cut", needed, ops)


def _forward(problem: Problem) -> _Forward:
    graph = problem.graph
    turn = turn_of(graph)
    made: list[_Made] = []
    for name, life in lifetimes(graph).items():
        storage = graph.storages[name]
        if 0 <= life.birth < turn and name not in graph.outliving:
            inside = bisect_right(life.uses, turn - 1)
            made.append(_Made(name, storage.size_bytes, life.birth, life.uses[inside - 1], life.uses[inside:]))
    born, crossing = [0] * (turn + 1), [0] * (turn + 1)
    for item in made:
        born[item.birth + 1] += item.size_bytes
        crossing[item.birth + 1] += item.size_bytes
        crossing[min(item.last_forward + 1, turn)] -= item.size_bytes
    large = [item for item in made if item.size_bytes >= problem.minimum_bytes]
    return _Forward(
        lineage_of(problem),
        turn,
        tuple(sorted(large, key=lambda item: item.birth)),
        tuple(accumulate(born)),
        tuple(accumulate(crossing)),
    )


def _trials(forward: _Forward) -> Iterator[_Trial]:
    """One for each number of segments that gives other cuts than a smaller number."""
    seen: dict[tuple[int, ...], None] = {}
    for segments in range(2, 4 * isqrt(max(forward.turn, 1)) + 1):
        cuts = _cuts(forward, segments)
        if cuts and cuts not in seen:
            seen[cuts] = None
            yield _trial(forward, cuts)


def _cuts(forward: _Forward, segments: int) -> tuple[int, ...]:
    """The steps before which the forward pass is cut: near even shares of the bytes made, where the fewest cross."""
    total = forward.made_bytes[-1]
    cuts: dict[int, None] = {}
    for number in range(1, segments):
        share = total * number / segments
        near = [
            (forward.crossing_bytes[step], abs(forward.made_bytes[step] - share), step)
            for step in range(1, forward.turn)
            if abs(forward.made_bytes[step] - share) < total / (2 * segments)
        ]
        if near:
            cuts[min(near)[2]] = None
    return tuple(sorted(cuts))


def _trial(forward: _Forward, cuts: tuple[int, ...]) -> _Trial:
    inside: dict[int, list[_Made]] = {}
    for item in forward.made:
        segment = bisect_right(cuts, item.birth)
        if segment < len(cuts) and segment == bisect_right(cuts, item.last_forward):
            inside.setdefault(segment, []).append(item)
    rebuilt: dict[int, list[str]] = {}
    for items in inside.values():
        step = _first_need(forward.lineage, items)
        if step is not None:
            rebuilt.setdefault(step, []).extend(_needed(forward.lineage, items, step))
    lineage = forward.lineage
    ordered = {step: lineage.oldest_first(names) for step, names in rebuilt.items()}
    seconds = sum(lineage.chain_seconds(name, step) for step, names in ordered.items() for name in names)
    return _Trial(ordered, seconds)


def _first_need(lineage: Lineage, items: Sequence[_Made]) -> int | None:
    """The first step of the backward pass that uses something of a segment that can be built again there."""
    first = [(item.name, item.backward[0]) for item in items if item.backward]
    return min((step for name, step in first if lineage.sources(name, step) is not None), default=None)


def _needed(lineage: Lineage, items: Sequence[_Made], step: int) -> list[str]:
    """What of a segment is used from `step` on, by the backward pass or by what is repeated."""
    found: list[str] = []
    needed: set[str] = set()
    for item in reversed(items):
        sources = lineage.sources(item.name, step)
        if sources is not None and (item.name in needed or any(use >= step for use in item.backward)):
            found.append(item.name)
            needed.update(sources)
    return found
