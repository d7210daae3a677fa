"""Does a step whose ops are placed on devices take what its longest chain takes?"""

from outgrow.analysis.cost import Cost
from outgrow.ir.machine import Device, LinkRates, Machine, Peers
from outgrow.ir.text import parse_graph
from outgrow.planning.partition.placed import placed_seconds

OPERANDS = """\
storage x input 8
storage w parameter 8
storage v parameter 8
storage m optimizer 8
storage a 8
storage b 8
storage c 8
value %x: x@0 f32[2]
value %w: w@0 f32[2]
value %v: v@0 f32[2]
value %m: m@0 f32[2]
%a: a@0 f32[2] = aten.mul.Tensor(%x, %w)
%b: b@0 f32[2] = aten.mul.Tensor(%x, %v)
"""
STEP = parse_graph(f"{OPERANDS}%c: c@0 f32[2] = aten.add.Tensor(%b, %a)\nreturn %c")
UPDATE = parse_graph(f"{OPERANDS}%c: c@0 f32[2] = aten.add.Tensor(%m, %b)\nreturn %a, %c")
COSTS = {op.name: Cost(1.0) for op in STEP.ops}
PAIR = Machine("pair", Device("gpu", 1e12, 1e11), LinkRates(1e9, 1e9), peers=(Peers(2, 16.0),))


def test_what_reads_state_runs_where_its_other_operand_was_made() -> None:
    """A moment and the gradient of a parameter of the second device: two ops each in turn, and nothing is sent."""
    assert placed_seconds(UPDATE, COSTS, PAIR, 2) == 2.0


def test_ops_of_different_devices_run_at_once_and_wait_for_what_they_get() -> None:
    """Two products at once, eight bytes at 16 bytes/s, and the sum: 2.5 s; one after the other they take 3."""
    assert placed_seconds(STEP, COSTS, PAIR, 2) == 2.5
    assert placed_seconds(STEP, COSTS, PAIR, 1) == 3.0
