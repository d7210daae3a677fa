"""The order of least peak: exact on small graphs, valid on all, never worse than what it starts from."""

import pytest
from hypothesis import given, settings

from outgrow.analysis.liveness import live_bytes
from outgrow.ir.graph import Graph
from outgrow.ir.stand_ins import numbered
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify
from outgrow.planning.order.ideals import packed, search_ideals
from outgrow.planning.order.jobs import Jobs, jobs_of, live_bytes_in
from outgrow.planning.order.moves import moves_to
from outgrow.planning.order.reorder import Effort, lowered
from outgrow.rewriting.derive import apply_laws
from tests.graphs import graphs
from tests.planning.irregular import irregular
from tests.planning.orders import keeps, least_peak, workspace_of
from tests.planning.test_planners import chain

WORK = 1 << 40


def ordered(jobs: Jobs, seconds: float = 10.0) -> list[int]:
    """The order found from the captured one."""
    return lowered(jobs, list(range(len(jobs))), Effort.of(seconds))


def names_of(graph: Graph, order: list[int]) -> list[str]:
    """The ops of an order."""
    return [graph.ops[job].name for job in order]


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=7))
def test_small_graphs_are_ordered_as_well_as_any_permutation(graph: Graph) -> None:
    """The peak found is the least over all orders, and is that of the order returned."""
    jobs = jobs_of(graph, workspace_of(graph))
    order = ordered(jobs)
    assert keeps(jobs.predecessors, order)
    assert max(live_bytes_in(jobs, order), default=0) == least_peak(jobs)


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=7))
def test_an_exhaustive_search_finds_an_order_iff_there_is_one(graph: Graph) -> None:
    """At the least peak a wide search finds an order; a byte below it finds none, and knows that it missed none."""
    jobs = jobs_of(graph, workspace_of(graph))
    peak = least_peak(jobs)
    for by_peak in (False, True):
        found = search_ideals(packed(jobs), peak, 4096, WORK, by_peak=by_peak)
        assert found.order is not None
        assert max(live_bytes_in(jobs, found.order), default=0) == found.peak_bytes == peak
        below = search_ideals(packed(jobs), peak - 1, 4096, WORK, by_peak=by_peak)
        assert (below.order is None and below.is_exhaustive) or not len(jobs)


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=12))
def test_reordering_is_a_valid_rewriting_and_no_worse(graph: Graph) -> None:
    """The moves are accepted by their law, the graph is verified, and its peak is not above that of the captured."""
    workspace = workspace_of(graph)
    order = ordered(jobs_of(graph, workspace, first_stays=True))
    found = apply_laws(graph, moves_to(graph, names_of(graph, order)))
    verify(found, captured=numbered(graph))
    assert max(live_bytes(found, workspace), default=0) <= max(live_bytes(graph, workspace), default=0)


def test_moves_carry_out_any_order_that_keeps_the_first_op() -> None:
    """A branch that runs last, first or between others is reached by few moves."""
    graph = irregular(seed=3, ops=60)
    order = names_of(graph, ordered(jobs_of(graph, {}, first_stays=True)))
    assert [op.name for op in apply_laws(graph, moves_to(graph, order)).ops] == order


def test_the_expensive_branch_is_finished_before_the_next_begins() -> None:
    """Two branches that each make something large and reduce it: one after the other, not side by side."""
    graph = parse_graph(
        """
        storage x input 4
        storage a 1000
        storage b 1000
        storage c 4
        storage d 4
        storage e 4
        value %x: x@0 f32[1]
        %a: a@0 f32[250] = my.wide(%x)
        %b: b@0 f32[250] = my.other(%x)
        %c: c@0 f32[1] = my.sum(%a)
        %d: d@0 f32[1] = my.last(%b)
        %e: e@0 f32[1] = my.end(%c, %d)
        return %e
        """
    )
    jobs = jobs_of(graph, {})
    order = ordered(jobs)
    assert names_of(graph, order) == ["wide", "sum", "other", "last", "end"]
    assert max(live_bytes_in(jobs, order)) == 4 + 4 + 1000 + 4


def test_a_chain_stays_as_it_is() -> None:
    """Where the order is forced, it is the captured one."""
    assert ordered(jobs_of(chain(8), {})) == list(range(16))


@pytest.mark.parametrize("seed", range(4))
def test_irregular_graphs_get_better_and_the_same_each_time(seed: int) -> None:
    """The order found is deterministic, valid, and no worse than the captured one."""
    graph = irregular(seed, ops=120)
    jobs = jobs_of(graph, {}, first_stays=True)
    order = ordered(jobs, 0.5)
    assert ordered(jobs, 0.5) == order
    verify(apply_laws(graph, moves_to(graph, names_of(graph, order))), captured=numbered(graph))
    assert max(live_bytes_in(jobs, order)) <= max(live_bytes(graph, {}))
