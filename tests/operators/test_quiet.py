"""A repetition of batch normalisation leaves the running statistics alone."""

import pytest

from outgrow.errors import InvalidGraph
from outgrow.ir.graph import Op, Ref
from outgrow.ir.stand_ins import Leeway, numbered
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify
from outgrow.operators.effects import QUIET, quiet
from outgrow.plan import Recompute
from outgrow.rewriting.derive import apply_laws

GRAPH = parse_graph(
    """
    storage x input 64
    storage w parameter 8
    storage m buffer 8
    storage v buffer 8
    storage y 64
    storage s 8
    storage r 8
    storage z 64
    storage u 64
    value %x: x@0 f32[8, 2]
    value %w: w@0 f32[2]
    value %m: m@0 f32[2]
    value %v: v@0 f32[2]
    norm: %y: y@0 f32[8, 2], %s: s@0 f32[2], %r: r@0 f32[2] = NORM(%x, %w, %w, %m, %v, True, 0.1, 1e-05) writes m, v
    %z: z@0 f32[8, 2] = aten.exp.default(%x)
    %u: u@0 f32[8, 2] = aten.add.Tensor(%z, %y)
    return %u
    """.replace("NORM", "aten.native_batch_norm.default")
)


def test_a_repetition_of_batch_norm_writes_no_statistics() -> None:
    """The copy has None for the running statistics, and the verifier accepts it as the same content."""
    found = apply_laws(GRAPH, [Recompute("y", "add")])
    verify(found, captured=numbered(GRAPH, Leeway(quiet=QUIET)))
    copy = found.ops[2]
    assert copy.arguments[3:5] == (None, None)
    assert copy.writes == ()


def test_without_the_table_the_verifier_refuses_the_repetition() -> None:
    """Which arguments may be left out is for the operators' table to say."""
    with pytest.raises(InvalidGraph, match="changes what outlives the step"):
        verify(apply_laws(GRAPH, [Recompute("y", "add")]), captured=numbered(GRAPH))


def test_other_operators_stay_as_they_are() -> None:
    """An operator that the table does not name keeps its arguments and its writes."""
    op = Op("dropout", "aten.dropout.default", (Ref("x"),), writes=("generator",))
    assert quiet(op) is op
