"""Triggered copies keep the capacity whenever the gaps that are away allow it."""

from outgrow.analysis.cost import Cost
from outgrow.analysis.liveness import Gap
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, Piece, Swap
from outgrow.planning.problem import Problem
from outgrow.planning.published.profile import Profile, profile_of
from outgrow.planning.published.triggers import SwapSchedule, latest_trigger, triggered

GRAPH = parse_graph(
    """
    storage x input 8
    storage a 16
    storage b 8
    storage c 56
    storage d 8
    storage e 8
    storage f 8
    storage g 24
    value %x: x@0 f32[2]
    %a: a@0 f32[4] = my.one(%x)
    %b: b@0 f32[2] = my.two(%x)
    %c: c@0 f32[14] = my.three(%b)
    %d: d@0 f32[2] = my.four(%c)
    %e: e@0 f32[2] = my.five(%a, %d)
    %g: g@0 f32[6] = my.big(%e)
    %f: f@0 f32[2] = my.six(%a, %g)
    return %f
    """
)
"""Without `a`, which rests twice, the ops three and four need 72 bytes, and big with its workspace 80."""


def profiled(link: LinkRates, capacity: int) -> tuple[Problem, Profile]:
    costs = {op.name: Cost(1.0, 40 if op.name == "big" else 0) for op in GRAPH.ops}
    machine = Machine("toy", Device("toy", 1e9, 1e9), link)
    problem = Problem(GRAPH, costs, machine, Budget(capacity), minimum_bytes=16)
    return problem, profile_of(problem, GRAPH)


def found(link: LinkRates, capacity: int, ahead: int) -> SwapSchedule:
    """All gaps, each triggered this many ops ahead of its use."""
    problem, profile = profiled(link, capacity)
    return triggered(problem, profile, {gap: max(gap.begin + 1, gap.end - ahead) for gap in profile.gaps})


def test_a_storage_leaves_once_its_copy_has_ended_and_is_copied_out_once() -> None:
    """It comes back for the trigger; the second rest finds the version in the next tier and ends with a wait."""
    schedule = found(LinkRates(32.0, 32.0), 88, ahead=1)
    assert schedule.swaps == (
        Swap("a", "one", "three", (Piece(0, 16, "four"),), "five"),
        Swap("a", None, "big", (Piece(0, 16, "six"),), "six"),
    )
    assert [stall for _, stall in schedule.stalls] == [0.0, 0.5]
    assert schedule.seconds == 7.5


def test_where_room_is_lacking_the_copy_out_is_waited_for() -> None:
    """It takes until the fifth second, and the op that would begin at the second one has no room before."""
    schedule = found(LinkRates(4.0, 32.0), 80, ahead=1)
    assert schedule.swaps[0].dropped == "three"
    assert schedule.seconds == 7.0 + 3.0 + 0.5 + 0.5


def test_a_copy_back_that_finds_no_room_begins_later() -> None:
    """Triggered at once, it has to wait until the large storage is gone."""
    schedule = found(LinkRates(32.0, 32.0), 80, ahead=9)
    assert schedule.swaps[0].pieces == (Piece(0, 16, "five"),)


def test_a_storage_still_on_its_way_out_is_kept_if_there_is_room() -> None:
    """Its copy back is triggered before its copy out has ended, so that it need not leave at all."""
    schedule = found(LinkRates(0.5, 32.0), 1000, ahead=1)
    assert schedule.swaps == ()
    assert schedule.seconds == 7.0


def test_the_latest_trigger_lies_within_the_gap() -> None:
    """It is the last step that begins at the asked time or before, but never outside the gap."""
    _, profile = profiled(LinkRates(32.0, 32.0), 80)
    gap = Gap("a", 16, 0, 4)
    assert [latest_trigger(profile, gap, seconds) for seconds in (-3.0, 0.5, 2.0, 2.5, 9.0)] == [1, 1, 2, 2, 4]
