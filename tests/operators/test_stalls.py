"""Writing over an operand stalls one kernel, in one layout; a plan does so only for want of room."""

import pytest

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.operators.stalls import slowdown
from outgrow.plan import Budget, Reuse
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from tests.planning.normalised import normalised

MACHINE = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1e6, 1e6))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (normalised(), 1.6),
        (normalised("16,4,2,1"), 1.0),
        (normalised(dtype="bf16"), 1.0),
        (normalised(groups=4), 1.6),
    ],
    ids=["channels last", "contiguous", "converted on the way", "a channel a group"],
)
def test_narrow_groups_stall_in_channels_last(graph: Graph, expected: float) -> None:
    """Over the gradient, float32 in channels-last stalls; the operator itself never does."""
    op = graph.ops[-3]
    assert slowdown(graph.values, op, "over0.aten.native_group_norm_backward.default") == expected
    assert slowdown(graph.values, op) == 1.0


@pytest.mark.parametrize(("capacity", "stalls"), [(240, False), (200, True)])
def test_a_plan_stalls_for_want_of_room(capacity: int, stalls: bool) -> None:
    """The step needs 288 bytes. What waits moves away, or the result lies over an operand, which takes longer."""
    graph = normalised()
    costs = {op.name: Cost(1.0) for op in graph.ops}
    found = planned(Problem(graph, costs, MACHINE, Budget(capacity), minimum_bytes=4))
    assert (Reuse("norm", 1) in found.plan.decisions) is stalls
    assert found.plan.predicted.seconds == pytest.approx(7.4 if stalls else 7.0, abs=0.01)
