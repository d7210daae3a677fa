"""What may an order be? Every one of a few jobs, for comparison with what a planner finds."""

from collections.abc import Iterator, Sequence

from outgrow.ir.graph import Graph
from outgrow.planning.order.jobs import Jobs, live_bytes_in


def workspace_of(graph: Graph) -> dict[str, int]:
    """Some workspace for some ops."""
    return {op.name: 700 * (at % 3) for at, op in enumerate(graph.ops)}


def orders(jobs: Jobs) -> Iterator[tuple[int, ...]]:
    """Yield every order that keeps the edges."""

    def extended(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(order) == len(jobs):
            yield order
        for job in range(len(jobs)):
            if job not in order and all(earlier in order for earlier in jobs.predecessors[job]):
                yield from extended((*order, job))

    return extended(())


def keeps(waits: Sequence[Sequence[int]], order: Sequence[int]) -> bool:
    """Whether no job of an order comes before one that it waits for."""
    position = {job: at for at, job in enumerate(order)}
    return all(position[earlier] < position[job] for job in order for earlier in waits[job])


def least_peak(jobs: Jobs) -> int:
    """The least peak over all orders."""
    return min(max(live_bytes_in(jobs, order), default=0) for order in orders(jobs))
