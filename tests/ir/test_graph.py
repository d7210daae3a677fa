"""Do the records of a graph answer what instructions read, write and touch?"""

import pytest

from outgrow.ir.accesses import accesses_of
from outgrow.ir.graph import Op, Ref, Role, Storage, Symbol, Wait, argument_values
from outgrow.ir.layout import contiguous_strides, end_bytes
from outgrow.ir.machine import LinkRates
from outgrow.ir.text import parse_graph

GRAPH = parse_graph("""
    storage x input 8
    storage s buffer 8
    storage y 8
    value %x: x@0 f32[2]
    %y: y@0 f32[2], _ = my.norm(%x, [%x, 1]) writes s
    wait y
    %y1: y@1 f32[2] = aten.relu_.default(%y)
    return %y1
""")


def test_ops_are_the_instructions_without_transfers() -> None:
    """Ops and their positions leave the transfers out."""
    assert [op.name for op in GRAPH.ops] == ["norm", "relu_"]
    assert GRAPH.op_positions == {"norm": 0, "relu_": 2}


def test_an_op_touches_what_it_reads_and_writes() -> None:
    """Reads, writes and touched storages are each named once; a hidden write counts as a write."""
    norm, wait, relu = GRAPH.instructions
    assert GRAPH.reads(norm) == ("x",)
    assert GRAPH.written(norm) == ("y", "s")
    assert GRAPH.touched(norm) == ("x", "y", "s")
    assert GRAPH.touched(relu) == ("y",)
    assert (GRAPH.reads(wait), GRAPH.written(wait), GRAPH.touched(wait)) == ((), (), ("y",))


def test_steps_agree_with_the_graph() -> None:
    """The records for passes over a graph say what its methods say."""
    for item, access in zip(GRAPH.instructions, accesses_of(GRAPH), strict=True):
        assert access.written == GRAPH.written(item)
        assert access.touched == GRAPH.touched(item)
    assert GRAPH.born_at == {"y": 0}


def test_an_op_reads_the_values_among_its_arguments() -> None:
    """Nested arguments and keywords count, and a value counts once unless every mention is asked for."""
    op = Op("f", "f", (1, Ref("a"), (Ref("b"), (Ref("a"),))), (("c", Ref("c")), ("d", Symbol("e"))))
    assert op.operands == ("a", "b", "c")
    assert op.references == ("a", "b", "a", "c")
    assert list(argument_values("text")) == []


def test_a_repeated_op_knows_the_captured_one() -> None:
    """An op is the captured op of its own name unless it names another as its origin."""
    assert Op("f", "f").captured == "f"
    assert Op("f_again", "f", origin="f").captured == "f"
    assert Wait("x").storage == "x"


@pytest.mark.parametrize("role", Role)
def test_gradients_activations_and_scalars_end_with_the_step(role: Role) -> None:
    """All other storages are persistent."""
    assert Storage("x", 4, role).is_persistent == (role not in ("gradient", "activation", "scalar"))


def test_a_dense_layout_counts_empty_dimensions_as_one() -> None:
    """Strides are torch's, also where a dimension has no elements."""
    assert contiguous_strides((2, 0, 3)) == (3, 3, 1)
    assert contiguous_strides(()) == ()


def test_a_view_ends_at_the_last_byte_that_it_shows() -> None:
    """Overlapping, empty and scalar views end where their last element does."""
    assert end_bytes("float32", (4, 4), (0, 1), 2) == 24
    assert end_bytes("float32", (4, 0), (1, 1), 9) == 0
    assert end_bytes("float", (), (), 0) == 0
    assert end_bytes("unheard_of", (4,), (1,), 0) == 0


def test_a_transfer_takes_its_latency_and_its_bytes_time() -> None:
    """Each way has its own rate."""
    link = LinkRates(out_bytes_per_second=10.0, in_bytes_per_second=20.0, latency_seconds=1.0)
    assert link.out_seconds(40) == 5.0
    assert link.in_seconds(40) == 3.0
