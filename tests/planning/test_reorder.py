"""The order of least peak: exact on small graphs, valid on all, never worse than what it starts from."""

import pytest
from hypothesis import given, settings

from outgrow.analysis.liveness import live_bytes
from outgrow.analysis.precedence import first_violation
from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify
from outgrow.planning.early_updates import early_updates
from outgrow.planning.ideals import packed, search_ideals
from outgrow.planning.jobs import jobs_of, profile
from outgrow.planning.moves import moves_to
from outgrow.planning.reorder import least_peak_order, reordered
from outgrow.rewriting.derive import apply_laws
from tests.graphs import graphs
from tests.planning.irregular import irregular
from tests.planning.orders import least_peak, workspace_of
from tests.planning.test_planners import chain, problem_of

WORK = 1 << 40


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=7))
def test_small_graphs_are_ordered_as_well_as_any_permutation(graph: Graph) -> None:
    """The peak found is the least over all orders, and is that of the order returned."""
    workspace = workspace_of(graph)
    jobs = jobs_of(graph, workspace)
    order, peak = least_peak_order(graph, workspace)
    number = {op.name: at for at, op in enumerate(graph.ops)}
    found = [number[name] for name in order]
    assert first_violation(jobs.predecessors, found) is None
    assert peak == max(profile(jobs, found), default=0) == least_peak(jobs)


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=7))
def test_an_exhaustive_search_finds_an_order_iff_there_is_one(graph: Graph) -> None:
    """At the least peak a wide search finds an order; a byte below it finds none, and knows that it missed none."""
    jobs = jobs_of(graph, workspace_of(graph))
    peak = least_peak(jobs)
    for by_peak in (False, True):
        found = search_ideals(packed(jobs), peak, 4096, WORK, by_peak=by_peak)
        assert found.order is not None
        assert max(profile(jobs, found.order), default=0) == found.peak_bytes == peak
        below = search_ideals(packed(jobs), peak - 1, 4096, WORK, by_peak=by_peak)
        assert (below.order is None and below.is_exhaustive) or not len(jobs)


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=12))
def test_reordering_is_a_valid_rewriting_and_no_worse_than_early_updates(graph: Graph) -> None:
    """The moves are accepted by their law, the graph is verified, and its peak is not above that of early updates."""
    problem = problem_of(graph, 1)
    early, _ = early_updates(problem, graph)
    found, moves = reordered(problem, graph)
    verify(found, captured=graph)
    assert apply_laws(graph, moves) == found
    peaks = [max(live_bytes(one, problem.workspace), default=0) for one in (found, early, graph)]
    assert peaks[0] <= min(peaks)


def test_moves_carry_out_any_order_that_keeps_the_first_op() -> None:
    """A branch that runs last, first or between others is reached by few moves."""
    graph = irregular(seed=3, ops=60)
    order, _ = least_peak_order(graph, {}, first_stays=True)
    assert tuple(op.name for op in apply_laws(graph, moves_to(graph, order)).ops) == order


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
    assert least_peak_order(graph, {}) == (("wide", "sum", "other", "last", "end"), 4 + 4 + 1000 + 4)


def test_a_chain_stays_as_it_is() -> None:
    """Where the order is forced, it is the captured one, and nothing is decided."""
    graph = chain(8)
    assert reordered(problem_of(graph, 1), graph) == (graph, ())


@pytest.mark.parametrize("seed", range(4))
def test_irregular_graphs_get_better_and_the_same_each_time(seed: int) -> None:
    """The order found is deterministic, valid, and no worse than the captured one."""
    graph = irregular(seed, ops=120)
    order, peak = least_peak_order(graph, {}, time_limit=0.5)
    assert least_peak_order(graph, {}, time_limit=0.5) == (order, peak)
    verify(apply_laws(graph, moves_to(graph, least_peak_order(graph, {}, 0.5, first_stays=True)[0])), captured=graph)
    assert peak <= max(live_bytes(graph, {}))
