"""The simulator keeps three lanes and the memory by the rules that its docstring states."""

from itertools import pairwise

import pytest

from outgrow.analysis.cost import Cost
from outgrow.analysis.timeline import Lane, Trace, memory_over_time
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify
from outgrow.simulation import replay

GRAPH = parse_graph(
    """
    storage x input 8
    storage a 16
    storage b 8
    storage c 8
    storage d 8
    value %x: x@0 f32[2]
    %a: a@0 f32[4] = my.one(%x)
    swap_out a
    %b: b@0 f32[2] = my.two(%x)
    wait a
    drop a
    swap_in a 0:8
    %c: c@0 f32[2] = my.three(%b)
    swap_in a 8:16
    wait a
    %d: d@0 f32[2] = my.four(%c, %a)
    return %d
    """
)
COSTS = {"one": Cost(1.0), "two": Cost(1.0, 4), "three": Cost(3.0), "four": Cost(1.0)}


def tier_peak_bytes(trace: Trace) -> int:
    """The most bytes that the next tier holds at once."""
    return max(tier for _, _, tier in memory_over_time(trace.events))


def run(link: LinkRates) -> Trace:
    """Replay the graph over a link."""
    return replay(GRAPH, COSTS, Machine("toy", Device("toy", 1.0, 1.0), link))


def test_copies_run_beside_the_arithmetic() -> None:
    """The copy out ends after op two, so the clock waits for it; the last piece is waited for as well."""
    trace = run(LinkRates(out_bytes_per_second=8.0, in_bytes_per_second=4.0))
    spans = {(span.lane, span.label, span.begin): span.end for span in trace.spans}
    assert spans[Lane.OUT, "a", 1.0] == 3.0
    assert spans[Lane.IN, "a", 3.0] == 5.0
    assert spans[Lane.IN, "a", 6.0] == 8.0
    assert trace.seconds == 9.0


def test_a_quick_link_hides_everything_but_what_is_asked_for_late() -> None:
    """With a link that takes no time the step takes its arithmetic."""
    assert run(LinkRates(1e12, 1e12)).seconds == pytest.approx(6.0)


def test_lanes_of_a_half_duplex_link_take_turns() -> None:
    """On a half-duplex link no two copies overlap."""
    spans = [span for span in run(LinkRates(2.0, 2.0, half_duplex=True)).spans if span.lane is not Lane.COMPUTE]
    assert all(before.end <= after.begin for before, after in pairwise(spans))


def test_the_peak_counts_storages_workspace_and_reserved_pieces() -> None:
    """Memory: x, a, b and the workspace of two at once; a frees its bytes when it is dropped."""
    trace = run(LinkRates(8.0, 4.0))
    assert trace.peak_bytes == 8 + 16 + 8 + 8
    assert tier_peak_bytes(trace) == 16
    assert (trace.bytes_out, trace.bytes_in) == (16, 16)
    assert trace.events[-1].device_bytes <= 0 or trace.events[-1].seconds <= trace.seconds


def test_latency_is_paid_for_each_transfer() -> None:
    """Two pieces pay the latency twice."""
    quick, slow = run(LinkRates(1e12, 1e12)), run(LinkRates(1e12, 1e12, latency_seconds=1.0))
    assert slow.seconds == pytest.approx(quick.seconds + 1.0)


def test_a_second_copy_out_takes_the_place_of_the_first() -> None:
    """The tier has one place for a storage: its next version is copied over the last, and both copies cost time."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = my.one(%x)
        swap_out a
        wait a
        %a1: a@1 f32[2] = my.two_(%a)
        swap_out a
        wait a
        return %a1
        """
    )
    trace = replay(graph, {}, Machine("toy", Device("toy", 1.0, 1.0), LinkRates(8.0, 8.0)))
    assert (tier_peak_bytes(trace), trace.bytes_out, trace.seconds) == (8, 16, 2.0)


def test_what_is_dropped_last_is_freed_once() -> None:
    """A storage whose last touch is its drop holds nothing then."""
    graph = parse_graph(
        """
        storage x input 8
        storage y 800
        storage z 800
        value %x: x@0 f32[2]
        %y: y@0 f32[200] = my.one(%x)
        swap_out y
        wait y
        drop y
        %z: z@0 f32[200] = my.two(%x)
        return %z
        """
    )
    trace = replay(graph, {}, Machine("toy", Device("toy", 1.0, 1.0), LinkRates(8.0, 8.0)))
    assert [device for _, device, _ in memory_over_time(trace.events)][-1] == 808
    assert trace.peak_bytes == 808


def test_a_wait_ends_with_the_last_copy_in_flight() -> None:
    """A slow copy out and a quick one in of other bytes: the wait that follows is for both."""
    graph = parse_graph(
        """
        storage x input 8
        storage y 8
        storage z 8
        value %x: x@0 f32[2]
        %y: y@0 f32[2] = my.one(%x)
        swap_out y 0:4
        wait y
        drop y 0:4
        swap_out y 4:8
        swap_in y 0:4
        wait y
        %z: z@0 f32[2] = my.two(%y)
        return %z
        """
    )
    verify(graph)
    trace = replay(graph, {}, Machine("toy", Device("toy", 1.0, 1.0), LinkRates(1.0, 4.0)))
    assert trace.seconds == 8.0


def test_what_sinks_takes_the_lanes_below_and_turns_on_those_above() -> None:
    """The next tier holds nothing: the copy out lasts as long as the slower of the two links, and so do both back."""
    above, below = LinkRates(8.0, 8.0), LinkRates(out_bytes_per_second=4.0, in_bytes_per_second=2.0)
    machine = Machine("toy", Device("toy", 1.0, 1.0), above, tier_bytes=0, below=below)
    trace = replay(GRAPH, COSTS, machine)
    copies = [(span.lane, span.begin, span.end) for span in trace.spans if span.lane is not Lane.COMPUTE]
    assert copies == [(Lane.OUT, 1.0, 5.0), (Lane.IN, 5.0, 9.0), (Lane.IN, 9.0, 13.0)]
    assert trace.seconds == 14.0
    roomy = replay(GRAPH, COSTS, Machine("toy", Device("toy", 1.0, 1.0), above, tier_bytes=1 << 20, below=below))
    assert roomy == run(above)
