"""Addresses: blocks that are live together lie apart, and the arena is hardly larger than what is live."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outgrow.analysis.liveness import live_bytes
from outgrow.ir.graph import Graph
from outgrow.planning.addresses.blocks import Block, Part, blocks_of, live_peak_bytes
from outgrow.planning.addresses.placement import Placement, place
from outgrow.planning.planner import planned
from outgrow.rewriting.derive import apply_laws
from outgrow.simulation import replay
from tests.graphs import graphs, swapped
from tests.planning.irregular import irregular
from tests.planning.orders import workspace_of
from tests.planning.test_planners import MACHINE, chain, problem_of


def require_apart(blocks: Sequence[Block], placement: Placement) -> None:
    """Go through every instruction and every byte that a part holds there: no two parts share one."""
    last = max((block.end for block in blocks), default=0)
    for at in range(last):
        held = sorted(
            (address + part.low, address + part.high)
            for block, address in zip(blocks, placement.addresses, strict=True)
            for part in block.parts
            if part.begin <= at < part.end
        )
        assert all(address >= 0 for address, _ in held)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(held))
        assert max((end for _, end in held), default=0) <= placement.arena_bytes


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from((1, 4, 512)))
def test_no_two_blocks_share_a_byte_at_an_instruction(data: st.DataObject, alignment: int) -> None:
    """Whatever is swapped, in pieces or whole, each byte of the arena belongs to one block at a time."""
    graph = data.draw(swapped(data.draw(graphs())))
    blocks = blocks_of(graph, workspace_of(graph))
    placement = place(blocks, alignment_bytes=alignment, rounds=20)
    require_apart(blocks, placement)
    assert all(address % alignment == 0 for address in placement.addresses)
    assert placement.arena_bytes >= placement.live_bytes


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_blocks_hold_what_is_live(graph: Graph) -> None:
    """Without transfers, the most that blocks hold at once is the peak of the liveness analysis."""
    assume(graph.ops)
    workspace = workspace_of(graph)
    assert live_peak_bytes(blocks_of(graph, workspace)) == max(live_bytes(graph, workspace), default=0)


def test_a_storage_that_comes_back_in_pieces_holds_what_the_simulation_says() -> None:
    """The blocks of a swapped graph hold as much as its replay, and are placed within a twentieth more."""
    problem = problem_of(chain(10), 1600)
    graph = apply_laws(problem.graph, planned(problem).plan.decisions)
    blocks = blocks_of(graph, problem.workspace)
    placement = place(blocks, alignment_bytes=4)
    require_apart(blocks, placement)
    assert len({block.label for block in blocks}) < len(blocks), "some storage should stay twice"
    assert placement.live_bytes == replay(graph, problem.costs, MACHINE).peak_bytes
    assert placement.arena_bytes <= 1.05 * placement.live_bytes


@pytest.mark.parametrize("seed", range(4))
def test_irregular_graphs_are_placed_tightly(seed: int) -> None:
    """Hundreds of storages of mixed sizes need little more than what is live at the peak."""
    blocks = blocks_of(irregular(seed, ops=200), {})
    placement = place(blocks, alignment_bytes=4)
    require_apart(blocks, placement)
    assert placement.arena_bytes <= 1.01 * placement.live_bytes


def test_the_pieces_of_a_block_lie_at_one_address() -> None:
    """A block that grows upward waits below one that goes: only its last piece needs that one's room."""
    growing = Block("s", (Part(0, 4, 0, 3), Part(4, 8, 2, 3)))
    going = Block("t", (Part(0, 4, 0, 2),))
    placement = place([growing, going], alignment_bytes=1)
    assert placement.addresses == (0, 4)
    assert placement.arena_bytes == placement.live_bytes == 8
