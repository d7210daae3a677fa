"""What a search sees of a step costs what the step does, as far as what is not seen is small."""

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.problem import Problem
from outgrow.planning.search.annealing import conditions_of, tried
from outgrow.planning.search.choice import SwapRule
from outgrow.planning.search.contracted import contracted
from outgrow.planning.search.residence import residence
from outgrow.planning.search.sequence import DISCARD, KEEP, REBUILD, sequence_of
from outgrow.planning.search.space import space_of
from tests.graphs import graphs
from tests.planning.test_planners import problem_of

MACHINE = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(10.0, 20.0))
STATISTICS = parse_graph(
    """
    storage x input 8
    storage a 100
    storage m 4
    storage v 4
    storage b 100
    storage c 100
    storage d 100
    value %x: x@0 f32[2]
    one: %a: a@0 f32[25] = my.one(%x)
    mean: %m: m@0 f32[1] = my.mean(%a)
    root: %v: v@0 f32[1] = my.root(%m)
    two: %b: b@0 f32[25] = my.two(%x)
    three: %c: c@0 f32[25] = my.three(%b, %v)
    four: %d: d@0 f32[25] = my.four(%a, %c)
    return %d
    """
)
"""`root` and what it touches are small."""


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=14), capacity=st.integers(100, 4000), data=st.data())
def test_where_every_storage_is_seen_nothing_changes(graph: Graph, capacity: int, data: st.DataObject) -> None:
    """Any policy then has the cost that it has in the space as a whole."""
    assume(graph.ops)
    problem = problem_of(graph, capacity, minimum_bytes=0)
    whole = space_of(problem, free_rewrites(problem)[0])
    small = contracted(whole)
    count = len(small.space.start)
    choices = data.draw(st.lists(st.sampled_from((KEEP, REBUILD, DISCARD)), min_size=count, max_size=count))
    policy = np.array(choices, dtype=np.int8)
    found = tried(conditions_of(small.space), policy, SwapRule())
    expected = tried(conditions_of(whole), small.spread(policy), SwapRule())
    assert found.excess_bytes == expected.excess_bytes
    np.testing.assert_allclose(found.seconds, expected.seconds)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=14), minimum_bytes=st.sampled_from((64, 512)))
def test_no_op_holds_more_than_the_contracted_one_that_it_belongs_to(graph: Graph, minimum_bytes: int) -> None:
    """Where all is kept, contracted ops take as long together, and hold at least what each of their ops does."""
    assume(graph.ops)
    problem = problem_of(graph, 1 << 40, minimum_bytes=minimum_bytes)
    whole = space_of(problem, free_rewrites(problem)[0])
    small = contracted(whole)
    policies = (np.zeros_like(whole.start), np.zeros_like(small.space.start))
    (seconds, live, _, _), (fewer, most, _, _) = (
        residence(space.tables, sequence_of(space.tables, policy), policy)
        for space, policy in zip((whole, small.space), policies, strict=True)
    )
    assert (small.spread(small.space.start) == whole.start).all()
    np.testing.assert_allclose(fewer.sum(), seconds.sum())
    ends = np.searchsorted(np.cumsum(fewer) * (1 + 1e-9), np.cumsum(seconds))
    assert (most[np.minimum(ends, len(most) - 1)] >= live).all()


def test_what_is_small_is_taken_with_what_is_large() -> None:
    """`root` runs with `mean`, which touches a large storage; a repetition of that takes its own seconds alone."""
    costs = {op.name: Cost(float(1 + at)) for at, op in enumerate(STATISTICS.ops)}
    problem = Problem(STATISTICS, costs, MACHINE, Budget(250), minimum_bytes=64)
    space = contracted(space_of(problem, STATISTICS)).space
    small = space.tables
    assert space.names == ("a", "b", "c", "d")
    assert small.op_seconds.tolist() == [1.0, 5.0, 4.0, 5.0, 6.0]
    assert small.again_seconds.tolist() == [1.0, 2.0, 4.0, 5.0, 6.0]
    assert small.op_workspace.tolist() == [8, 16, 12, 12, 8]
