"""A schedule keeps the capacity at every op, or there is none."""

from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from outgrow.analysis.cost import Cost
from outgrow.analysis.liveness import peak_bytes
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.stand_ins import Leeway, numbered
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify
from outgrow.operators.in_place import IN_PLACE
from outgrow.plan import Budget, Piece, Reuse, Stow, Swap
from outgrow.planning.floor import floor_of
from outgrow.planning.free.free import Freed, free_rewrites
from outgrow.planning.order.lean import Orders
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.planning.search import search as search_module
from outgrow.planning.search.boards import Board
from outgrow.planning.search.choice import FARTHEST, PARTLY, SwapRule
from outgrow.planning.search.decisions import decisions_of
from outgrow.planning.search.residence import Residence, residence
from outgrow.planning.search.search import search
from outgrow.planning.search.sequence import DISCARD, KEEP, REBUILD, sequence_of
from outgrow.planning.search.space import space_of
from outgrow.planning.search.transfers import Transfers, rates, schedule
from outgrow.rewriting.derive import apply_laws
from outgrow.simulation import replay
from tests.graphs import graphs
from tests.planning.crowded import crowded
from tests.planning.test_planners import problem_of

MACHINE = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1000.0, 800.0))
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
    sequence = sequence_of(space.tables, space.start)
    seconds, live, gaps, _ = Residence.of(residence(space.tables, sequence, space.start))
    assert len(gaps.begin) == 2
    for moved in (np.zeros(2, np.int64), gaps.size):
        capacity = PROBLEM.budget.capacity_bytes
        found = Transfers(*schedule(seconds, live, gaps, moved, capacity, rates(MACHINE.link), 0.0, 4))
        assert not np.isfinite(found.seconds)
        assert found.excess_bytes == 8


def test_a_schedule_that_takes_too_long_is_given_up() -> None:
    """In 50 bytes both gaps move, and the step waits for them; what that takes is a limit that is kept, less is not."""
    space = space_of(PROBLEM, GRAPH)
    sequence = sequence_of(space.tables, space.start)
    seconds, live, gaps, _ = Residence.of(residence(space.tables, sequence, space.start))

    def within(limit: float) -> Transfers:
        return Transfers(*schedule(seconds, live, gaps, gaps.size, 50, rates(MACHINE.link), 0.0, 4, limit))

    needed = within(np.inf).seconds
    assert seconds.sum() < needed < np.inf
    assert within(needed).seconds == needed
    late = within(needed * (1 - 1e-6))
    assert late.seconds == np.inf
    assert late.excess_bytes == 0


def test_of_a_storage_leaves_what_there_is_no_room_for() -> None:
    """50 bytes of 100 are lacking over four ops: the first 64, in parts of 64, leave and come back."""
    graph = crowded(is_rebuilt=False)
    machine = Machine("slow", Device("toy", 1e9, 1e9), LinkRates(10.0, 20.0))
    costs = {op.name: Cost(1.0) for op in graph.ops}
    plan = planned(Problem(graph, costs, machine, Budget(262), minimum_bytes=4, piece_bytes=64)).plan
    assert plan.decisions == (Swap("p", "one", "fill0", (Piece(0, 64, "last"),), "last"),)
    assert plan.predicted.peak_bytes == 262 - 14
    assert plan.predicted.seconds == pytest.approx(6 + 6.4 + 3.2)


def test_over_which_a_result_lies_that_outlives_the_step_leaves_whole_or_not_at_all() -> None:
    """50 bytes of 100 are lacking while `p` rests, but the result that is written over it stays in its storage."""
    graph = parse_graph(
        """
        storage x input 4
        storage p 100
        storage f 204
        storage q 4
        storage d gradient 100
        value %x: x@0 f32[1]
        one: %p: p@0 f32[25] = my.one(%x)
        fill: %f: f@0 f32[51] = my.fill(%x)
        less: %q: q@0 f32[1] = my.less(%f)
        last: %d: d@0 f32[25] = aten.mul.Tensor(%p, %q)
        return %d
        """
    )
    costs = {op.name: Cost(1.0) for op in graph.ops}
    problem = Problem(graph, costs, MACHINE, Budget(262), minimum_bytes=4, piece_bytes=64)
    stages = search(problem, Orders(problem), Freed(graph, (), floor_of(problem, graph)[0]))
    decisions = [decision for stage in stages for decision in stage.decisions]
    assert Reuse("last", 0) in decisions
    assert any(isinstance(decision, Swap | Stow) for decision in decisions)
    assert stages[-1].graph == apply_laws(graph, decisions)
    verify(stages[-1].graph, captured=numbered(graph, Leeway(in_place=IN_PLACE)), capacity_bytes=262)


def test_what_the_laws_refuse_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where decisions of the best trial are wrong, those of the next best are taken, and the plan says so."""
    wrong = iter([(Reuse("last", 1),)])
    right = decisions_of
    monkeypatch.setattr(search_module, "decisions_of", lambda space, trial: next(wrong, None) or right(space, trial))
    graph = crowded(is_rebuilt=False)
    problem = Problem(graph, {op.name: Cost(1.0) for op in graph.ops}, MACHINE, Budget(262), minimum_bytes=4)
    plan = planned(problem).plan
    assert [type(decision) for decision in plan.decisions] == [Swap]
    assert "reuse does not apply" in plan.notes[0]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    graph=graphs(max_ops=14),
    share=st.floats(0.0, 1.0),
    half_duplex=st.booleans(),
    rule=st.sampled_from((FARTHEST, PARTLY)),
    headroom=st.sampled_from((0.0, 0.25)),
    data=st.data(),
)
def test_a_plan_is_as_quick_as_the_trial_that_it_comes_from(
    graph: Graph, share: float, half_duplex: bool, rule: int, headroom: float, data: st.DataObject
) -> None:
    """Copies stand in the order in which the trial made them; it keeps a turn for those that it calls off.

    The budget lies between the floor and the peak in core.
    """
    machine = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1000.0, 800.0, half_duplex=half_duplex))
    ample = problem_of(graph, 1 << 40, machine, minimum_bytes=4)
    rewritten, free, _ = free_rewrites(ample)
    floor, peak = floor_of(ample, rewritten)[0], peak_bytes(graph, ample.workspace)
    problem = replace(ample, budget=Budget(floor + int(share * (peak - floor))))
    board = Board(space_of(problem, rewritten), free, Event())
    board.is_wanted.set()
    count = len(board.space.start)
    choices = data.draw(st.lists(st.sampled_from((KEEP, REBUILD, DISCARD)), min_size=count, max_size=count))
    trial = board.tried(np.array(choices, dtype=np.int8), SwapRule(rule, headroom))
    assume(np.isfinite(trial.seconds))
    derived = apply_laws(rewritten, decisions_of(board.space, trial))
    assert replay(derived, problem.costs, machine).seconds <= trial.seconds * (1 + 1e-9)


def test_what_is_used_first_comes_back_first() -> None:
    """Before `idle` two copies come back at once; the small one, which left last, is used first and waited for less."""
    graph = parse_graph(
        """
        storage x input 4
        storage a 400
        storage b 100
        storage f 600
        storage q 4
        storage r 4
        storage s 4
        storage t 4
        value %x: x@0 f32[1]
        %a: a@0 f32[100] = my.one(%x)
        %b: b@0 f32[25] = my.two(%x)
        %f: f@0 f32[150] = my.fill(%x)
        %q: q@0 f32[1] = my.less(%f)
        %r: r@0 f32[1] = my.idle(%q)
        %s: s@0 f32[1] = my.small(%b, %r)
        %t: t@0 f32[1] = my.large(%a, %s)
        """
    )
    machine = Machine("slow in", Device("toy", 1e9, 1e9), LinkRates(1e6, 100.0))
    problem = Problem(graph, {op.name: Cost(2.0) for op in graph.ops}, machine, Budget(620), minimum_bytes=4)
    board = Board(space_of(problem, graph), (), Event())
    board.is_wanted.set()
    trial = board.tried(board.space.start, SwapRule(lead=0.5))
    decisions = decisions_of(board.space, trial)
    assert [decision.storage for decision in decisions if isinstance(decision, Swap)] == ["b", "a"]
    assert replay(apply_laws(graph, decisions), problem.costs, machine).seconds == pytest.approx(trial.seconds)
