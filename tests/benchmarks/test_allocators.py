"""What unplanned allocators hold: by hand on small cases, and never less than what is live."""

import pytest
from allocators.caching import caching_allocator
from allocators.requests import comings_and_goings
from allocators.virtual import virtual_addresses
from hypothesis import given

from outgrow.ir.graph import Graph
from outgrow.planning.addresses.blocks import Block, Part, blocks_of
from outgrow.units import MIB
from tests.graphs import graphs


def block(size: int, begin: int, end: int) -> Block:
    """A block of bytes at the instructions `begin:end`."""
    return Block("", (Part(0, size, begin, end),))


@pytest.mark.parametrize(
    ("blocks", "reserved_mib"),
    [
        ([block(100, 0, 1)], 2),
        ([block(3 * MIB, 0, 1)], 20),
        ([block(11 * MIB, 0, 1)], 12),
        ([block(12 * MIB, 0, 1), block(12 * MIB, 1, 2)], 12),
        ([block(12 * MIB, 0, 1), block(14 * MIB, 1, 2)], 26),
        ([block(9 * MIB, 0, 2), block(9 * MIB, 0, 1), block(9 * MIB, 1, 2)], 20),
        ([block(9 * MIB, 0, 2), block(9 * MIB, 0, 1), block(11 * MIB, 1, 2)], 20),
        ([block(9 * MIB, 0, 2), block(9 * MIB, 0, 2), block(3 * MIB, 1, 2)], 40),
        ([block(600, 0, 1), block(MIB, 0, 1), block(MIB, 0, 1)], 4),
    ],
)
def test_segments_are_reserved_as_the_rules_say(blocks: list[Block], reserved_mib: int) -> None:
    """Small ones share segments of 2 MiB, larger ones of 20 MiB; the largest have their own, and none fits two."""
    assert caching_allocator(blocks).reserved_bytes == reserved_mib * MIB


@pytest.mark.parametrize(
    ("blocks", "chunks", "mapped"),
    [
        ([block(10, 0, 1), block(10, 1, 2)], 1, 1),
        ([block(10, 0, 1), block(30, 1, 2)], 3, 3),
        ([block(30, 0, 1), block(10, 1, 2)], 3, 4),
        ([block(10, 0, 1), block(20, 0, 1), block(50, 1, 2)], 5, 6),
        ([block(11, 0, 2), block(11, 0, 2)], 4, 4),
    ],
)
def test_ranges_are_reused_grown_and_stripped(blocks: list[Block], chunks: int, mapped: int) -> None:
    """Chunks of 10 bytes serve any range; each that goes to another range is mapped anew."""
    found = virtual_addresses(blocks, chunk_bytes=10)
    assert (found.reserved_bytes, found.chunks_mapped) == (10 * chunks, mapped)


@given(graphs())
def test_no_allocator_holds_less_than_what_is_live(graph: Graph) -> None:
    """What is reserved is at least the most that was asked for at once."""
    blocks = blocks_of(graph, {})
    for found in (caching_allocator(blocks), virtual_addresses(blocks, 64)):
        assert found.reserved_bytes >= found.live_bytes
        assert found.fragmentation >= 0


@given(graphs())
def test_what_comes_goes(graph: Graph) -> None:
    """Every block comes once and goes once, in this order."""
    blocks = blocks_of(graph, {})
    changes = list(comings_and_goings(blocks))
    assert len(changes) == 2 * len(blocks)
    for number, block in enumerate(blocks):
        came = changes.index((number, block.size_bytes))
        assert came < changes.index((number, None))
