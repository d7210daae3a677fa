"""The first TFLMS swaps maps, the first of the forward pass first, and brings each back lb ops before its use."""

import pytest

from outgrow.errors import Infeasible
from outgrow.ir.text import parse_graph
from outgrow.plan import Swap
from outgrow.planning.floor import require_feasible
from outgrow.planning.published.tflms_v1 import tflms_v1
from tests.planning.published.rivals import between, checked, decided
from tests.planning.test_planners import MACHINE, chain, problem_of

LONG_GRADIENT = parse_graph(
    """
    storage x input 8
    storage a 64
    storage g 64
    storage h 64
    storage i 64
    storage j 8
    value %x: x@0 f32[2]
    %a: a@0 f32[16] = my.one(%x)
    %g: g@0 f32[16] = my.backward(%a)
    %h: h@0 f32[16] = my.two_backward(%a)
    %i: i@0 f32[16] = my.three_backward(%h)
    %j: j@0 f32[2] = my.four_backward(%g, %i)
    return %j
    """
)
"""What rests longest is made in the backward pass: with it 204 bytes are needed, without it 144."""


def swaps_of(budget_share: float, length: int = 12) -> list[Swap]:
    problem = between(chain(length), budget_share, MACHINE)
    decisions = tflms_v1(problem)
    checked(problem, decisions)
    return [decision for decision in decisions if isinstance(decision, Swap)]


def test_a_tighter_budget_swaps_more_maps_from_the_first_on() -> None:
    """n_tensors counts from the begin of the forward pass and is as low as the budget allows."""
    counts: list[int] = []
    for share in (0.2, 0.5, 0.8):
        swapped = {swap.storage for swap in swaps_of(share)}
        assert swapped == {f"a{number}" for number in range(len(swapped))}
        counts.append(len(swapped))
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 3


def test_a_map_comes_back_one_op_ahead_where_that_hides_its_copy() -> None:
    """An op takes a second here and a copy a third of it, so lb = 1 is the quickest and the first that is tried."""
    graph = chain(12)
    for swap in swaps_of(0.5):
        (piece,) = swap.pieces
        assert graph.op_positions[swap.before] - graph.op_positions[piece.before] == 1


def test_what_only_the_backward_pass_holds_is_not_swapped() -> None:
    """Where a gradient that rests is too much, the first TFLMS has no plan, although the floor allows one."""
    problem = problem_of(LONG_GRADIENT, 164)
    require_feasible(problem, problem.graph)
    with pytest.raises(Infeasible, match="tflms_v1 finds no plan") as refusal:
        tflms_v1(problem)
    budget = refusal.value.floor_bytes
    assert decided(problem_of(LONG_GRADIENT, budget), "tflms_v1") == ()


def test_a_branch_is_swapped_within_the_forward_pass_where_the_step_needs_it() -> None:
    """A map that skips over large ops, as in a U-Net, leaves before it is used the second time."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 64
        storage b 64
        storage c 8
        storage d 8
        storage e 8
        storage f 8
        value %x: x@0 f32[2]
        %a: a@0 f32[16] = my.one(%x)
        %b: b@0 f32[16] = my.two(%x)
        %c: c@0 f32[2] = my.three(%b)
        %d: d@0 f32[2] = my.four(%a, %c)
        %e: e@0 f32[2] = my.first_backward(%d)
        %f: f@0 f32[2] = my.second_backward(%e, %a)
        return %f
        """
    )
    problem = problem_of(graph, 100)
    decisions = tflms_v1(problem)
    swaps = [decision for decision in decisions if isinstance(decision, Swap)]
    assert ("a", "four") in [(swap.storage, swap.before) for swap in swaps]
    checked(problem, decisions)
