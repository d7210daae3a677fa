"""A schedule keeps the capacity at every op, or there is none."""

import numpy as np

from outgrow.analysis.cost import Cost
from outgrow.ir.machine import Device, Link, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget
from outgrow.planning.problem import Problem
from outgrow.planning.residence import residence_of
from outgrow.planning.sequence import sequence_of
from outgrow.planning.space import space_of
from outgrow.planning.transfers import transfers

MACHINE = Machine("toy", Device("toy", 1e9, 1e9), Link(1000.0, 800.0))
GRAPH = parse_graph(
    """
    storage x input 8
    storage a 16
    storage b 16
    storage c 8
    storage d 8
    value %x: x@0 f32[2]
    %a: a@0 f32[4] = my.one(%x)
    %b: b@0 f32[4] = my.two(%x)
    %c: c@0 f32[2] = my.three(%x)
    %d: d@0 f32[2] = my.four(%a, %b)
    return %d
    """
)
PROBLEM = Problem(GRAPH, {op.name: Cost(1.0) for op in GRAPH.ops}, MACHINE, Budget(40), minimum_bytes=4)


def test_gaps_that_free_too_little_have_no_schedule() -> None:
    """The last op needs 48 bytes whatever rests before it, with and without a copy on its way out."""
    space = space_of(PROBLEM, GRAPH)
    seconds, live, gaps, _ = residence_of(space.tables, sequence_of(space.tables, space.start), space.start)
    assert len(gaps.begin) == 2
    for is_chosen in (np.zeros(2, np.bool_), np.ones(2, np.bool_)):
        found = transfers(seconds, live, gaps, is_chosen, PROBLEM.budget.capacity_bytes, MACHINE.link, 0.0, 4)
        assert not np.isfinite(found.seconds)
        assert found.excess_bytes == 8
