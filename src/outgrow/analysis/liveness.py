"""When is each storage live, and where are the gaps between its uses?

A storage is live from its birth (an input: from before the first op, step -1) to its last use; a persistent
storage, one that holds a result and an input that no op uses are live to the end, step n. Steps count ops alone:
this analysis describes graphs before any transfer is planned.

    live(s, k)    iff birth(s) <= k <= death(s)
    gap of s      = two consecutive uses i < j with at least one op between them, and s not in flight from i to j
    bytes(k)      = sum of size(s) over storages live at k, plus the workspace of op k
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

from outgrow.ir.flight import flights, is_in_flight
from outgrow.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The first and last step at which a storage is live, and every step that uses it."""

    birth: int
    death: int
    uses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """A storage rests between its uses at steps `begin` and `end`.

    `dirty` is False where the same version already rested in an earlier gap, so that a copy of it exists
    if that gap was swapped.
    """

    storage: str
    size_bytes: int
    begin: int
    end: int
    dirty: bool = True


def lifetimes(graph: Graph) -> dict[str, Lifetime]:
    """Return the lifetime of every storage of the graph, also of those that no op uses, in the order of declaration."""
    uses: dict[str, list[int]] = {}
    for step, touched in enumerate(graph.touched_at):
        for storage in touched:
            uses.setdefault(storage, []).append(step)
    end = len(graph.ops)
    found: dict[str, Lifetime] = {}
    for name in graph.storages:
        steps = uses.get(name, [])
        stays = name in graph.outliving
        birth = steps[0] if name in graph.born_at else -1
        death = end if stays or not steps else steps[-1]
        found[name] = Lifetime(birth, death, tuple(steps))
    return found


def write_steps(graph: Graph) -> dict[str, list[int]]:
    """Return the steps that write each storage, ascending."""
    found: dict[str, list[int]] = {}
    for step, written in enumerate(graph.written_at):
        for name in written:
            found.setdefault(name, []).append(step)
    return found


def gaps(graph: Graph, *, minimum_bytes: int, leaving: Collection[str] = ()) -> tuple[Gap, ...]:
    """Return every gap of a storage of at least `minimum_bytes` that may leave the device, in order of `begin`.

    Storages that outlive the step stay on the device, except those named in `leaving`; all storages stay while they
    are in flight (`ir.flight`).
    """
    written, flown = graph.written_at, flights(graph)
    found: list[Gap] = []
    for name, life in lifetimes(graph).items():
        storage = graph.storages[name]
        stays = name in graph.outliving and name not in leaving
        if storage.size_bytes < minimum_bytes or stays:
            continue
        rested = False
        for begin, end in pairwise(life.uses):
            rested = rested and name not in written[begin]
            if end - begin > 1 and not is_in_flight(flown.get(name, ()), begin, end):
                found.append(Gap(name, storage.size_bytes, begin, end, dirty=not rested))
                rested = True
    return tuple(sorted(found, key=lambda gap: (gap.begin, gap.end, gap.storage)))


def live_bytes(graph: Graph, workspace: Mapping[str, int]) -> list[int]:
    """Return bytes(k) for each step k; `workspace` gives bytes by captured op name (0 where missing).

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 8
    ... storage y 8
    ... value %x: x@0 f32[2]
    ... %y: y@0 f32[2] = aten.relu.default(%x)
    ... return %y
    ... ''')
    >>> live_bytes(graph, {})
    [16]
    """
    count = len(graph.ops)
    delta = [0] * (count + 1)
    for name, life in lifetimes(graph).items():
        size = graph.storages[name].size_bytes
        delta[max(life.birth, 0)] += size
        delta[min(life.death + 1, count)] -= size
    profile: list[int] = []
    held = 0
    for step, op in enumerate(graph.ops):
        held += delta[step]
        profile.append(held + workspace.get(op.captured, 0))
    return profile


def peak_bytes(graph: Graph, workspace: Mapping[str, int]) -> int:
    """Return the greatest bytes(k); a graph without ops holds what it is given."""
    return max(live_bytes(graph, workspace), default=sum([each.size_bytes for each in graph.storages.values()]))
