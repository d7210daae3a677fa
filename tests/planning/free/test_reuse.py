"""What is read by what could be built again later is written over only where there is no room for it."""

from dataclasses import replace
from threading import Event

import pytest

from outgrow.analysis.cost import Cost, with_parts
from outgrow.ir.machine import LinkRates
from outgrow.ir.text import parse_graph
from outgrow.plan import Recompute, Reuse
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.free.reuse import spoiling_ops
from outgrow.planning.order.lean import Orders
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.planning.search.boards import Board, boards
from tests.planning.test_planners import MACHINE, problem_of
from tests.verified import verify_derived

QUERIES = 4
LAST = f"ask{QUERIES - 1}"


def _attention() -> str:
    """Keys, made at great cost, are read for each query; each result asks the next one, and is read on the way back.

    The last query is the last use of the keys, so its result may be written over them.
    """
    lines = ["storage x input 4", "value %x: x@0 f32[1]", "storage keys 1024", "%keys: keys@0 f32[256] = my.keys(%x)"]
    query = "%x"
    for at in range(QUERIES):
        lines += [f"storage a{at} 1024", f"storage q{at} 4"]
        lines += [f"ask{at}: %a{at}: a{at}@0 f32[256] = aten.mul.Tensor(%keys, {query})"]
        lines += [f"%q{at}: q{at}@0 f32[] = aten.sum.default(%a{at})"]
        query = f"%q{at}"
    for at in reversed(range(QUERIES)):
        lines += [f"storage g{at} 4", f"%g{at}: g{at}@0 f32[] = my.backward({query}, %a{at})"]
        query = f"%g{at}"
    return "\n".join([*lines, f"return {query}"])


def problem(budget_bytes: int = 1 << 20, link: LinkRates = MACHINE.link) -> Problem:
    """The problem of that step, in which keys take twenty seconds and everything else a second."""
    graph = parse_graph(_attention())
    costs = {op.name: Cost(20.0 if op.operator == "my.keys" else 1.0) for op in graph.ops}
    found = problem_of(graph, budget_bytes, replace(MACHINE, link=link), minimum_bytes=256)
    return replace(found, costs=with_parts(graph, costs))


def test_an_operand_is_spared_if_what_is_made_of_it_rests_on() -> None:
    """All results of the keys could not be built again once these are written over; a chain in turn is not spared."""
    found = problem()
    graph, decisions, _ = free_rewrites(found)
    assert Reuse(LAST) in decisions
    assert spoiling_ops(found, graph, decisions) == {LAST}
    sparing, others, _ = free_rewrites(replace(found, sparing=frozenset({LAST})))
    verify_derived(sparing, found.graph)
    assert others == tuple(decision for decision in decisions if decision != Reuse(LAST))
    assert spoiling_ops(found, sparing, others) == set()


def test_what_dies_before_its_operand_spares_nothing() -> None:
    """Nobody would build it again."""
    graph = parse_graph("""
storage x input 4
storage a 1024
storage b 1024
storage c 1024
storage s 4
storage t 4
value %x: x@0 f32[1]
%a: a@0 f32[256] = my.make(%x)
%b: b@0 f32[256] = aten.cos.default(%a)
%s: s@0 f32[] = aten.sum.default(%b)
%c: c@0 f32[256] = aten.relu.default(%a)
%t: t@0 f32[] = aten.sum.default(%c)
return %s, %t
""")
    found = problem_of(graph, 1 << 20, minimum_bytes=256)
    rewritten, decisions, _ = free_rewrites(found)
    assert Reuse("relu") in decisions
    assert spoiling_ops(found, rewritten, decisions) == set()


@pytest.mark.parametrize(("operands", "found"), [(2.1, [False, True]), (4.3, [True])])
def test_where_there_is_room_a_board_spares_operands(operands: float, found: list[bool]) -> None:
    """Somewhat above its floor, what spares none is searched on as well."""
    given = problem(budget_bytes=int(operands * 1024))
    orders, wanted = Orders(given), Event()
    wanted.set()
    groups = [*boards(given, orders, orders.freed(given), wanted)]
    assert sorted(_spares(board) for group in groups for board in group) == found


def _spares(board: Board) -> bool:
    return Reuse(LAST) not in board.free


@pytest.mark.parametrize(("operands", "again"), [(3, QUERIES - 1), (4, QUERIES - 2)])
def test_what_is_dear_stays_for_what_is_built_from_it(operands: int, again: int) -> None:
    """Behind a slow link the cheap results are built again, each from the same keys, which are not."""
    plan = planned(problem(budget_bytes=operands * 1024, link=LinkRates(5.0, 5.0))).plan
    built = [decision.storage for decision in plan.decisions if isinstance(decision, Recompute)]
    assert len(built) == again
    assert "keys" not in built
    assert plan.predicted.seconds == pytest.approx(plan.in_core.seconds + again)
