"""Which storages sink, and which have no room, by what the next tier holds and what the device reads."""

from dataclasses import replace

from outgrow.analysis.sinking import homeless, lasting, passing, sunk
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph

PAGE = 4096
GRAPH = parse_graph(
    """
    storage w parameter 4096 at tier
    storage v parameter 8192 at tier
    storage a 4000
    value %w: w@0 f32[1024]
    value %v: v@0 f32[2048]
    swap_in w 0:4096
    wait w
    %a: a@0 f32[1000] = my.one(%w)
    swap_out a 0:4000
    drop w 0:4096
    swap_in v 0:8192
    wait a
    drop a 0:4000
    wait v
    swap_in a 0:4000
    wait a
    my.two(%v, %a)
    drop v 0:8192
    """
)
ROOMY = Machine("toy", Device("toy", 1.0, 1.0), LinkRates(1.0, 1.0), tier_bytes=4 * PAGE, below=LinkRates(1.0, 1.0))


def test_rooms_are_whole_pages() -> None:
    """Of what passes; what outlives the step is told apart."""
    assert passing(GRAPH) == {"a": PAGE}
    assert lasting(GRAPH) == {"w", "v"}


def test_nothing_sinks_where_there_is_room_or_nothing_below() -> None:
    """Four pages are enough."""
    assert sunk(GRAPH, ROOMY) == frozenset()
    assert sunk(GRAPH, replace(ROOMY, tier_bytes=0, below=None)) == frozenset()
    assert homeless(GRAPH, ROOMY) == homeless(GRAPH, replace(ROOMY, tier_bytes=None)) == frozenset()


def test_what_passes_sinks_before_what_has_to_be_read() -> None:
    """With three pages the weights have room; with two, one of them has none anywhere."""
    assert sunk(GRAPH, replace(ROOMY, tier_bytes=3 * PAGE)) == {"a"}
    tight = replace(ROOMY, tier_bytes=2 * PAGE)
    assert sunk(GRAPH, tight) == {"a"}
    assert homeless(GRAPH, tight) == {"w"}, "it is needed first, and rests for the longest"


def test_a_device_that_reads_what_is_below_lets_weights_sink() -> None:
    """What rests for the longest goes first, from one step to the next too."""
    reading = replace(ROOMY, reads_below=True)
    assert sunk(GRAPH, replace(reading, tier_bytes=3 * PAGE)) == {"w"}
    assert sunk(GRAPH, replace(reading, tier_bytes=PAGE)) == {"w", "v"}
    assert sunk(GRAPH, replace(reading, tier_bytes=0)) == {"w", "v", "a"}
    assert homeless(GRAPH, replace(reading, tier_bytes=0)) == frozenset()
