"""What can be had for nothing lowers the floor, and every plan that has it is valid."""

from dataclasses import replace

import pytest

from outgrow.analysis.liveness import live_bytes
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, ByLayout, Reuse, TakeApart
from outgrow.planning.floor import floor_of
from outgrow.planning.free.free import free_rewrites, layouts_asked, loosest
from outgrow.planning.planner import planned
from outgrow.rewriting.derive import verified
from tests.planning.convolutional import convolutional
from tests.planning.test_planners import MACHINE, problem_of
from tests.verified import verify_derived

PROBLEM = problem_of(convolutional(8), 1 << 20)


def test_large_convolutions_are_taken_apart_and_operands_let_go() -> None:
    """Every backward of a convolution and of pooling does without the operand of which only the layout matters."""
    graph, decisions, _ = free_rewrites(PROBLEM)
    verify_derived(graph, PROBLEM.graph)
    apart = [decision.op for decision in decisions if isinstance(decision, TakeApart)]
    assert apart == ["convolution_backward", "convolution_backward_1", "convolution_backward_2"]
    by_layout = [decision.op for decision in decisions if isinstance(decision, ByLayout)]
    assert by_layout == [
        "convolution_backward.input",
        "avg_pool2d_backward",
        "convolution_backward_1.input",
        "avg_pool2d_backward_1",
        "convolution_backward_2.input",
    ]


def test_a_graph_in_which_nothing_is_free_is_returned_as_it_is() -> None:
    """What is known of it, such as which op touches what, is not worked out again."""
    graph = parse_graph(KEPT)
    problem = replace(problem_of(graph, 1 << 20), minimum_bytes=1 << 10)
    assert layouts_asked(problem, graph)[0] is graph
    assert free_rewrites(problem)[0] is graph


def test_the_floor_sinks_by_what_a_part_does_without() -> None:
    """At the op that sets the floor, operand and gradient of the input are not there together any more."""
    before, culprit = floor_of(PROBLEM, PROBLEM.graph)
    after, _ = floor_of(PROBLEM, free_rewrites(PROBLEM)[0])
    assert culprit is not None
    assert culprit.operator == "aten.convolution_backward.default"
    assert before - after >= 256 - 4


@pytest.mark.parametrize("minimum_bytes", [4, 64, 1 << 10])
def test_the_floor_that_is_told_is_that_of_the_graph(minimum_bytes: int) -> None:
    """Also where nothing was free."""
    for problem in (PROBLEM, problem_of(parse_graph(KEPT), 1 << 20)):
        freed = free_rewrites(replace(problem, minimum_bytes=minimum_bytes))
        assert freed.floor_bytes == floor_of(replace(problem, minimum_bytes=minimum_bytes), freed.graph)[0]


def test_a_small_convolution_stays_whole() -> None:
    """Where the parts do without nothing that could move, or no op of this need can set the floor."""
    small = replace(PROBLEM, minimum_bytes=257)
    assert not any(isinstance(decision, TakeApart) for decision in free_rewrites(small)[1])
    graph = PROBLEM.graph
    first = graph.ops[0]
    costs = {**PROBLEM.costs, first.name: replace(PROBLEM.costs[first.name], workspace_bytes=1 << 16)}
    huge = replace(PROBLEM, costs=costs)
    assert not any(isinstance(decision, TakeApart) for decision in free_rewrites(huge)[1])


def test_an_op_whose_parts_have_no_cost_stays_whole() -> None:
    """A part of unknown cost would seem to take no time."""
    unknown = replace(PROBLEM, costs={op.name: PROBLEM.costs[op.name] for op in PROBLEM.graph.ops})
    assert not any(isinstance(decision, TakeApart) for decision in free_rewrites(unknown)[1])


def test_the_loosest_graph_holds_no_more_and_takes_as_long() -> None:
    """Taken apart, a step touches no more at any op, and its seconds are the same."""
    loose = loosest(PROBLEM)
    verify_derived(loose.graph, PROBLEM.graph)
    assert max(live_bytes(loose.graph, loose.workspace)) <= max(live_bytes(PROBLEM.graph, PROBLEM.workspace))
    seconds = [sum(map(problem.seconds_of, problem.graph.ops)) for problem in (PROBLEM, loose)]
    assert seconds[0] == pytest.approx(seconds[1])


KEPT = """\
storage x input 8
storage a 100
storage b 8
storage c 100
storage d 200
storage e 200
storage z 4
value %x: x@0 f32[2]
%a: a@0 f32[25] = aten.first.default(%x)
%b: b@0 f32[2] = aten.second.default(%x)
%c: c@0 f32[25] = aten.relu.default(%a)
%d: d@0 f32[50] = aten.wide.default(%x)
%e: e@0 f32[50] = aten.relu.default(%d)
%z: z@0 f32[1] = aten.sum.default(%e)
return %c, %z
"""


def test_an_operand_that_would_have_to_stay_is_not_written_over_where_that_raises_the_floor() -> None:
    """The result stays to the end: its operand would be there while the second op runs. The other re-use is made."""
    problem = problem_of(parse_graph(KEPT), 1 << 20)
    costs = {**problem.costs, "second": replace(problem.costs["second"], workspace_bytes=400)}
    problem = replace(problem, costs=costs, minimum_bytes=4)
    graph, decisions, _ = free_rewrites(problem)
    assert decisions == (Reuse("relu_1"),)
    assert floor_of(problem, graph)[0] == 8 + 8 + 400


@pytest.mark.parametrize("tightness", [0.0, 0.3, 0.7])
def test_a_plan_with_free_rewrites_is_valid_and_not_below_the_bound(tightness: float) -> None:
    """From the floor up, plans derive, fit, and take at least the bound."""
    floor, _ = floor_of(PROBLEM, free_rewrites(PROBLEM)[0])
    peak = max(live_bytes(PROBLEM.graph, PROBLEM.workspace))
    problem = replace(PROBLEM, budget=Budget(int(floor + tightness * (peak - floor))), machine=MACHINE)
    found = planned(problem)
    plan = found.plan
    assert any(isinstance(decision, TakeApart) for decision in plan.decisions)
    verified(problem.graph, plan, found.stages, problem.workspace)
    assert plan.predicted.peak_bytes <= problem.budget.capacity_bytes
    assert plan.predicted.seconds >= plan.bound_seconds * (1 - 1e-9)
