"""What does an order of the ops hold? The ops of a graph as jobs of one machine, which share its memory.

    job k               waits for its predecessors, brings bytes into being, needs workspace while it runs
    a mortal storage    dies with the last of the jobs that touch it, whichever that is
    held(S)           = start + born(j) over j in S - size(s) over mortal s that no job outside S touches
    bytes(k after S)  = held(S) + born(k) + workspace(k)          S: the set of jobs before k
    peak of an order  = max of bytes(k after S) over its jobs

The bytes held depend on which jobs have run, not on their order; so the partial orders that matter are as many as
there are *ideals*, sets of jobs that hold with each job those it waits for. `held` is submodular (a birth counts
alone, a death needs all that touch), which `ideals` draws on. Everything agrees with `analysis.liveness`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from outgrow.analysis.liveness import lifetimes
from outgrow.analysis.precedence import predecessors
from outgrow.ir.graph import Graph


@dataclass(frozen=True)
class Jobs:
    """Jobs by number, in an order that keeps every edge; `touches` numbers the mortal storages of each job.

    `sizes` and `births` are, by mortal storage, its bytes and the job that brings it into being (None: it is there
    before); `lasting` are the bytes that each job brings into being for good, and `start_bytes` is held before the
    first job.
    """

    predecessors: tuple[tuple[int, ...], ...]
    workspace_bytes: tuple[int, ...]
    touches: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    births: tuple[int | None, ...]
    lasting: tuple[int, ...]
    start_bytes: int

    def __len__(self) -> int:
        return len(self.predecessors)

    @cached_property
    def born_bytes(self) -> tuple[int, ...]:
        """The bytes that each job brings into being."""
        found = list(self.lasting)
        for size, birth in zip(self.sizes, self.births, strict=True):
            if birth is not None:
                found[birth] += size
        return tuple(found)

    @cached_property
    def uses(self) -> tuple[int, ...]:
        """How many jobs touch each mortal storage."""
        counts = Counter(chain.from_iterable(self.touches))
        return tuple(counts[storage] for storage in range(len(self.sizes)))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The jobs that wait for each job, ascending."""
        found: list[list[int]] = [[] for _ in self.predecessors]
        for number, earlier in enumerate(self.predecessors):
            for other in earlier:
                found[other].append(number)
        return tuple(tuple(numbers) for numbers in found)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """The jobs before each job in every order, as a bit set: bit j stands for job j."""
        found: list[int] = []
        for earlier in self.predecessors:
            known = 0
            for other in earlier:
                known |= found[other] | 1 << other
            found.append(known)
        return tuple(found)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """The jobs after each job in every order, as a bit set."""
        found = [0] * len(self)
        for number in reversed(range(len(self))):
            for later in self.successors[number]:
                found[number] |= found[later] | 1 << later
        return tuple(found)


def jobs_of(graph: Graph, workspace: Mapping[str, int], *, first_stays: bool = False) -> Jobs:
    """Return the ops of a graph without transfers as jobs; `workspace` gives bytes by captured op name.

    `first_stays` lets every other op wait for the first, as moves ask (see `moves`).
    """
    ops = graph.ops
    lasting, start = [0] * len(ops), 0
    touches: list[list[int]] = [[] for _ in ops]
    sizes: list[int] = []
    births: list[int | None] = []
    for name, life in lifetimes(graph).items():
        size = graph.storages[name].size_bytes
        if life.birth < 0:
            start += size
        if life.death == len(ops):
            if life.birth >= 0:
                lasting[life.birth] += size
        elif size:
            for step in life.uses:
                touches[step].append(len(sizes))
            sizes.append(size)
            births.append(None if life.birth < 0 else life.birth)
    waits = predecessors(graph)
    if first_stays:
        waits = tuple(earlier or (0,) * (number > 0) for number, earlier in enumerate(waits))
    return Jobs(
        waits,
        tuple(workspace.get(op.captured, 0) for op in ops),
        tuple(tuple(numbers) for numbers in touches),
        tuple(sizes),
        tuple(births),
        tuple(lasting),
        start,
    )


def live_bytes_in(jobs: Jobs, order: Sequence[int]) -> list[int]:
    """Return the bytes at each job of an order."""
    held, left = jobs.start_bytes, list(jobs.uses)
    found: list[int] = []
    for job in order:
        found.append(held + jobs.born_bytes[job] + jobs.workspace_bytes[job])
        held += _added(jobs, job, left)
    return found


def _added(jobs: Jobs, job: int, left: list[int]) -> int:
    """Return by how many bytes more is held after a job than before; counts off its touches of those `left`."""
    added = jobs.born_bytes[job]
    for storage in jobs.touches[job]:
        left[storage] -= 1
        if not left[storage]:
            added -= jobs.sizes[storage]
    return added


def window(jobs: Jobs, order: Sequence[int], begin: int, end: int) -> Jobs:
    """Return the jobs `order[begin:end]`, numbered in that order, as they stand between the others.

    A storage that a job behind the window touches does not die in it. Any order of the window fits between the
    same two ends, and what it holds at each job is what the whole order holds there.
    """
    left = list(jobs.uses)
    held = jobs.start_bytes + sum(_added(jobs, job, left) for job in order[:begin])
    return _some(jobs, order[begin:end], held, lambda storage, count: count == left[storage])


def alone(jobs: Jobs, begin: int, end: int) -> Jobs:
    """Return the jobs from `begin` to `end`, in their order, as if nothing but what they bring into being took room.

    A storage dies with the last of these jobs that touches it, even if later jobs touch it too.
    """
    inside = range(begin, end)
    return _some(jobs, inside, 0, lambda storage, _: jobs.births[storage] in inside)


def _some(jobs: Jobs, inside: Sequence[int], start_bytes: int, dies: Callable[[int, int], bool]) -> Jobs:
    """Return some jobs, numbered in their order, before which so much is held.

    `dies` says whether a storage dies with the last of them, given how many of them touch it.
    """
    number = {job: at for at, job in enumerate(inside)}
    counts = Counter(storage for job in inside for storage in jobs.touches[job])
    mortal = [storage for storage, count in counts.items() if dies(storage, count)]
    renumbered = {storage: at for at, storage in enumerate(mortal)}
    born_here = {storage: number[birth] for storage in counts if (birth := jobs.births[storage]) in number}
    lasting = [jobs.lasting[job] for job in inside]
    for storage, at in born_here.items():
        if storage not in renumbered:
            lasting[at] += jobs.sizes[storage]
    return Jobs(
        tuple(tuple(sorted(number[other] for other in jobs.predecessors[job] if other in number)) for job in inside),
        tuple(jobs.workspace_bytes[job] for job in inside),
        tuple(tuple(renumbered[one] for one in jobs.touches[job] if one in renumbered) for job in inside),
        tuple(jobs.sizes[storage] for storage in mortal),
        tuple(born_here.get(storage) for storage in mortal),
        tuple(lasting),
        start_bytes,
    )


def segments(jobs: Jobs) -> tuple[range, ...]:
    """Return the runs of jobs between separators, each with the separator that ends it.

    A separator is a job that comes before or after each other job in every order. What lies between two of them has
    to be ordered, but nothing passes a separator, so the segments are ordered one by one.
    """
    ends = [
        number + 1
        for number in range(len(jobs))
        if jobs.ancestors[number].bit_count() + jobs.descendants[number].bit_count() == len(jobs) - 1
    ]
    if not ends or ends[-1] < len(jobs):
        ends.append(len(jobs))
    return tuple(range(begin, end) for begin, end in zip([0, *ends], ends, strict=False) if begin < end)
