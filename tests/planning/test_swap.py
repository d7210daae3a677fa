"""A schedule keeps the capacity at every op, or there is none."""

from outgrow.analysis.cost import Cost
from outgrow.ir.machine import Device, Link, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget
from outgrow.planning.problem import Problem
from outgrow.planning.swap import profile_of, schedule

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
    profile = profile_of(PROBLEM, GRAPH)
    assert [gap.storage for gap in profile.gaps] == ["a", "b"]
    assert schedule(PROBLEM, profile, (), 0.0) is None
    assert schedule(PROBLEM, profile, profile.gaps, 0.0) is None
