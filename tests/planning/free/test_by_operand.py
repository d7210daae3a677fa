"""Concatenations that could set the floor go by operand, what was made last first; where there is room, at once."""

from dataclasses import replace
from threading import Event

import pytest

from outgrow.ir.text import parse_graph
from outgrow.plan import ByOperand
from outgrow.planning.floor import floor_of
from outgrow.planning.free.by_operand import put_in_turn
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.order.lean import Orders
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.planning.search.boards import Board, boards
from tests.planning.test_planners import problem_of
from tests.verified import verify_derived

BRANCHES = """
storage x input 4096
storage a 4096
storage b 4096
storage c 4096
storage y 16384
storage s 4
storage t 4
value %x: x@0 f32[1024]
%a: a@0 f32[1024] = aten.neg.default(%x)
%c: c@0 f32[1024] = aten.exp.default(%a)
%b: b@0 f32[1024] = aten.cos.default(%c)
%y: y@0 f32[4096] = aten.cat.default([%a, %b, %c, %x])
%s: s@0 f32[] = aten.sum.default(%y)
%t: t@0 f32[] = aten.sum.default(%a)
return %s, %t
"""
STATE = "\n".join(
    [
        *(f"storage {name} parameter 4096\nvalue %{name}: {name}@0 f32[1024]" for name in "abc"),
        *(f"storage {name} 4" for name in "pqrstuv"),
        "storage y 12288",
        *(f"%{one}: {one}@0 f32[] = aten.sum.default(%{name})" for one, name in zip("pqr", "abc", strict=True)),
        "%y: y@0 f32[3072] = aten.cat.default([%a, %b, %c])",
        "%v: v@0 f32[] = aten.sum.default(%y)",
        *(f"%{one}: {one}@0 f32[] = aten.sum.default(%{name})" for one, name in zip("stu", "abc", strict=True)),
        "return %p, %q, %r, %s, %t, %u, %v",
    ]
)
OPERAND = 4096


def problem(text: str = BRANCHES, budget_bytes: int = 1 << 20) -> Problem:
    """The problem of a step, in which everything but the sums is large."""
    return replace(problem_of(parse_graph(text), budget_bytes), minimum_bytes=256, least_bytes=256)


def test_the_floor_sinks_to_the_result_and_one_operand() -> None:
    """And to the input of the step, which stays; what was made last is there, and goes first."""
    found = problem()
    graph, decisions, _ = free_rewrites(found)
    verify_derived(graph, found.graph)
    assert ByOperand("cat", (1, 2, 0, 3)) in decisions
    assert floor_of(found, found.graph)[0] >= 8 * OPERAND
    assert floor_of(found, graph)[0] < 6.5 * OPERAND


@pytest.mark.parametrize("role", ["parameter", "optimizer", "input", "gradient"])
def test_what_outlives_the_step_and_may_be_away_is_spared_as_well(role: str) -> None:
    """Of three operands two are away while the third is put into the result; buffers never are."""
    text = STATE.replace("parameter", role)
    found = problem(text)
    graph, decisions = put_in_turn(found, found.graph)
    verify_derived(graph, found.graph)
    assert decisions == (ByOperand("cat", (0, 1, 2)),)
    assert floor_of(found, graph)[0] <= floor_of(found, found.graph)[0] - 2 * OPERAND
    buffers = parse_graph(STATE.replace("parameter", "buffer"))
    assert put_in_turn(found, buffers)[1] == ()


def test_an_op_that_is_not_in_the_way_goes_at_once() -> None:
    """Another needs more than twice as much; and what is small is not looked at."""
    wide = BRANCHES.replace("storage t 4", "storage t 4\nstorage z 65536").replace(
        "%t: t@0 f32[] = aten.sum.default(%a)",
        "%z: z@0 f32[4,4096] = aten.repeat.default(%a, [4, 4])\n%t: t@0 f32[] = aten.sum.default(%z)",
    )
    assert put_in_turn(problem(wide), parse_graph(wide))[1] == ()
    small = replace(problem(), minimum_bytes=1 << 20)
    assert put_in_turn(small, small.graph)[1] == ()


def test_turns_without_a_cost_are_not_taken() -> None:
    """They would seem to take no time."""
    found = problem()
    unknown = replace(found, costs={op.name: found.costs[op.name] for op in found.graph.ops})
    assert put_in_turn(unknown, unknown.graph)[1] == ()


@pytest.mark.parametrize(("operands", "found"), [(6.5, [True]), (9.5, [False, True]), (30.0, [False])])
def test_where_there_is_room_a_board_has_concatenations_at_once(operands: float, found: list[bool]) -> None:
    """Below what they need at once, by operand alone; somewhat above it both are searched on."""
    given = problem(budget_bytes=int(operands * OPERAND))
    orders, wanted = Orders(given), Event()
    wanted.set()
    groups = [*boards(given, orders, orders.freed(given), wanted)]
    assert sorted(_goes_by_operand(board) for group in groups for board in group) == found


def _goes_by_operand(board: Board) -> bool:
    return any(isinstance(decision, ByOperand) for decision in board.free)


def test_no_plan_beats_the_bound() -> None:
    """Nor is a plan above the budget, where only turns have one."""
    for operands in (6.5, 7.0, 8.0):
        plan = planned(problem(budget_bytes=int(operands * OPERAND))).plan
        assert plan.predicted.peak_bytes <= operands * OPERAND
        assert plan.predicted.seconds >= plan.bound_seconds * (1 - 1e-6)


def test_a_plan_names_the_floor_of_the_turns() -> None:
    """What has to be there is the result and an operand, not all of them."""
    found = planned(problem(budget_bytes=int(6.5 * OPERAND))).plan
    assert found.floor_bytes < 6.5 * OPERAND
    assert any(isinstance(decision, ByOperand) for decision in found.decisions)
