"""What may be written before an update? Buffers of a forward pass may, a moving average of parameters may not."""

from outgrow.analysis.updates import first_update, written_before_updates
from outgrow.ir.text import parse_graph

GRAPH = parse_graph("""\
storage w parameter 8
storage statistics buffer 8
storage average buffer 8
storage h 8
storage g 8
value %w: w@0 f32[2]
value %average: average@0 f32[2]
%h: h@0 f32[2] = aten.norm.default(%w) writes statistics
%g: g@0 f32[2] = aten.mul.Tensor(%h, 2.0)
%w1: w@1 f32[2] = aten.add_.Tensor(%w, %g)
%average1: average@1 f32[2] = aten.add_.Tensor(%average, %w1)
""")


def test_the_first_update_writes_a_parameter() -> None:
    """Ops before it write activations and buffers alone."""
    assert first_update(GRAPH) == 2


def test_an_average_of_parameters_waits_for_updates() -> None:
    """It uses what an update leaves, so no order of the ops lets it come first; the statistics come first."""
    assert written_before_updates(GRAPH) == {"statistics", "h", "g"}
