"""Jobs hold in any order what the liveness analysis says of the graph in that order."""

from dataclasses import replace
from itertools import permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from outgrow.analysis.liveness import live_bytes
from outgrow.analysis.precedence import predecessors
from outgrow.ir.graph import Graph
from outgrow.ir.stand_ins import numbered
from outgrow.ir.verify import verify
from outgrow.planning.order.jobs import Jobs, alone, jobs_of, live_bytes_in, segments, window
from outgrow.planning.order.unavoidable import unavoidable_bytes
from tests.graphs import graphs
from tests.planning.orders import keeps, least_peak, orders, workspace_of


def in_order(graph: Graph, order: list[int]) -> Graph:
    return replace(graph, instructions=tuple(graph.ops[job] for job in order))


@given(graphs(), st.integers(0, 1000))
def test_a_profile_is_what_liveness_says(graph: Graph, seed: int) -> None:
    """In a random order that keeps the edges, the graph is valid and holds what its jobs hold."""
    workspace = workspace_of(graph)
    jobs = jobs_of(graph, workspace)
    order = random_order(jobs, seed)
    other = in_order(graph, order)
    verify(other, captured=numbered(graph))
    assert live_bytes_in(jobs, order) == live_bytes(other, workspace)


@given(graphs(max_ops=5))
def test_the_edges_are_all_that_has_to_be_kept(graph: Graph) -> None:
    """Of all permutations, those that keep the edges are valid; each other one exchanges two ops in conflict."""
    waits = predecessors(graph)
    for order in permutations(range(len(waits))):
        position = {job: at for at, job in enumerate(order)}
        conflicts = (
            (earlier, later)
            for later in range(len(waits))
            for earlier in range(later)
            if not set(graph.written(graph.ops[earlier])).isdisjoint(graph.touched(graph.ops[later]))
            or not set(graph.touched(graph.ops[earlier])).isdisjoint(graph.written(graph.ops[later]))
        )
        is_kept = all(position[earlier] < position[later] for earlier, later in conflicts)
        assert keeps(waits, order) == is_kept


@given(graphs(), st.integers(0, 12), st.integers(0, 12))
def test_alone_jobs_hold_what_they_make_for_each_other(graph: Graph, begin: int, length: int) -> None:
    """Each holds what one of them has made and it, or one behind it, touches; and what is never freed."""
    jobs = jobs_of(graph, workspace_of(graph))
    begin = min(begin, len(jobs))
    end = min(begin + length, len(jobs))
    expected: list[int] = []
    for now in range(begin, end):
        held = jobs.workspace_bytes[now] + sum(jobs.lasting[begin : now + 1])
        for storage, birth in enumerate(jobs.births):
            touching = [job for job in range(begin, end) if storage in jobs.touches[job]]
            if birth is not None and begin <= birth <= now <= max(touching, default=-1):
                held += jobs.sizes[storage]
        expected.append(held)
    inside = alone(jobs, begin, end)
    assert live_bytes_in(inside, range(len(inside))) == expected


@given(graphs(), st.integers(0, 1000), st.integers(0, 12), st.integers(0, 12))
def test_a_window_holds_what_the_whole_holds_there(graph: Graph, seed: int, begin: int, length: int) -> None:
    """The jobs of a window, in the order they have, hold at each job what all jobs hold there; its bound is sound."""
    jobs = jobs_of(graph, workspace_of(graph))
    order = random_order(jobs, seed)
    begin = min(begin, len(order))
    inside = window(jobs, order, begin, begin + length)
    expected = live_bytes_in(jobs, order)[begin : begin + length]
    assert live_bytes_in(inside, range(len(inside))) == expected
    assert unavoidable_bytes(inside) <= max(expected, default=0)


@given(graphs(max_ops=7))
def test_no_order_is_below_what_is_unavoidable(graph: Graph) -> None:
    """The bound is at most the least peak over all orders, and so is the bound of each segment."""
    jobs = jobs_of(graph, workspace_of(graph))
    assert unavoidable_bytes(jobs) <= least_peak(jobs)
    parts = segments(jobs)
    assert [job for part in parts for job in part] == list(range(len(jobs)))
    for order in orders(jobs):
        for part in parts:
            assert sorted(order[part.start : part.stop]) == list(part)


def random_order(jobs: Jobs, seed: int) -> list[int]:
    """An order that keeps the edges, drawn job by job."""
    random = Random(seed)
    waits = [len(earlier) for earlier in jobs.predecessors]
    ready = [job for job, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        job = ready.pop(random.randrange(len(ready)))
        order.append(job)
        for later in jobs.successors[job]:
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return order
