"""Capuchin swaps what rests longest while that costs nothing, and recomputes what a swap would make late."""

from dataclasses import replace
from itertools import pairwise

from outgrow.analysis.cost import Cost
from outgrow.ir.machine import LinkRates
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, Recompute, Swap
from outgrow.planning.problem import Problem
from outgrow.planning.published.capuchin import capuchin
from outgrow.planning.published.lanes import Lanes
from outgrow.planning.published.profile import profile_of
from tests.planning.published.rivals import SLOW, between, checked
from tests.planning.test_planners import HALF_DUPLEX, MACHINE, chain, problem_of


def test_over_a_fast_link_the_longest_rests_are_swapped() -> None:
    """A chain's oldest maps have the longest free time; nothing is recomputed where transfers hide."""
    problem = between(chain(12), 0.6, MACHINE)
    decisions = capuchin(problem)
    checked(problem, decisions)
    swapped = {decision.storage for decision in decisions if isinstance(decision, Swap)}
    assert len(swapped) == len(decisions)
    assert swapped == {f"a{number}" for number in range(len(swapped))}


def test_over_a_slow_link_recomputation_takes_the_place_of_late_swaps() -> None:
    """A copy takes 128 seconds here and an op about one, so what can be made again is."""
    problem = between(chain(12), 0.6, SLOW)
    decisions = capuchin(problem)
    assert any(isinstance(decision, Recompute) for decision in decisions)
    everything_swapped = 2 * 128.0
    assert checked(problem, decisions) < everything_swapped


def test_what_saves_most_memory_per_second_is_recomputed_first() -> None:
    """Of two storages of one size, the one whose op is quicker is built again."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 64
        storage b 64
        storage c 64
        storage d 8
        storage e 8
        storage f 8
        value %x: x@0 f32[2]
        %a: a@0 f32[16] = my.slow(%x)
        %b: b@0 f32[16] = my.quick(%x)
        %c: c@0 f32[16] = my.large(%x)
        %d: d@0 f32[2] = my.small(%c)
        %e: e@0 f32[2] = my.uses(%b, %d)
        %f: f@0 f32[2] = my.needs(%a, %e)
        return %f
        """
    )
    costs = {op.name: Cost(10.0 if op.name == "slow" else 1.0) for op in graph.ops}
    problem = Problem(graph, costs, SLOW, Budget(152), minimum_bytes=16)
    decisions = capuchin(problem)
    assert decisions == (Recompute("b", "uses"),)
    checked(problem, decisions)


def test_transfers_in_one_direction_take_turns() -> None:
    """Copies out that begin at the same time follow each other, and so do copies back, from the last use on."""
    graph = chain(6)
    for machine in (MACHINE, HALF_DUPLEX, replace(MACHINE, link=LinkRates(100.0, 100.0))):
        profile = profile_of(problem_of(graph, 1, machine), graph)
        lanes = Lanes(profile, machine.link)
        booked = [lanes.book(gap) for gap in profile.gaps]
        outs = sorted((item.out_begin, item.out_begin + item.out_seconds) for item in booked)
        backs = sorted((item.back_begin, item.back_begin + item.back_seconds) for item in booked)
        for lane in [sorted([*outs, *backs])] if machine.link.half_duplex else [outs, backs]:
            assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(lane))
        assert all(item.out_begin + item.out_seconds <= item.back_begin + 1e-9 for item in booked)
