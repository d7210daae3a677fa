"""Flops are those of the textbook formulas."""

from outgrow.ir.text import parse_graph
from outgrow.operators.arithmetic import flops, moved_bytes

SHAPES = """
storage x input 8
storage y 8
storage z 8
value %x: x@0 f32[2,3,8,8]
value %w: x@0 f32[5,3,3,3]
value %g: x@0 f32[2,5,8,8]
value %left: x@0 f32[4,6]
value %right: x@0 f32[6,7]
value %bias: x@0 f32[7]
value %q: x@0 f32[2,3,10,8]
value %k: x@0 f32[2,3,20,8]
"""


def flops_of(line: str) -> float:
    """The flops of the one op on a line."""
    graph = parse_graph(SHAPES + line)
    return flops(graph, graph.ops[0])


def test_convolution() -> None:
    """2 * |output| * input channels * kernel size, and as much again for each gradient asked for."""
    rest = "[1, 1], [1, 1], [1, 1], False, [0, 0], 1"
    forward = 2 * (2 * 5 * 64) * 3 * 9
    assert flops_of(f"%y: y@0 f32[2,5,8,8] = aten.convolution.default(%x, %w, None, {rest})") == forward
    backward = "%y: y@0 f32[2,3,8,8], _, _ = aten.convolution_backward.default(%g, %x, %w, None, " + rest
    assert flops_of(f"{backward}, [True, True, False])") == 2 * forward
    assert flops_of(f"{backward}, [False, True, False])") == forward


def test_transposed_convolution() -> None:
    """A transposed convolution applies its weight at every position of its input."""
    line = "%y: y@0 f32[2,3,8,8] = aten.convolution.default(%g, %w, None, [1, 1], [1, 1], [1, 1], True, [0, 0], 1)"
    assert flops_of(line) == 2 * 2 * 64 * (5 * 3 * 9)


def test_matrix_products() -> None:
    """2 * m * k * n, with or without a bias."""
    assert flops_of("%y: y@0 f32[4,7] = aten.mm.default(%left, %right)") == 2 * 4 * 6 * 7
    assert flops_of("%y: y@0 f32[4,7] = aten.addmm.default(%bias, %left, %right)") == 2 * 4 * 6 * 7


def test_attention() -> None:
    """4 flops for each query, key and width, 10 backward."""
    call = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert flops_of(f"%y: y@0 f32[2,3,10,8] = {call}.default(%q, %k, %k)") == 4 * (2 * 3 * 10 * 8) * 20
    assert flops_of(f"%y: y@0 f32[2,3,10,8] = {call}_backward.default(%q, %q, %k, %k)") == 10 * (2 * 3 * 10 * 8) * 20


def test_bytes_count_every_operand_and_result_once() -> None:
    """An elementwise op moves its operand and its result."""
    graph = parse_graph(SHAPES + "%y: y@0 f32[4,6] = aten.add.Tensor(%left, %left)")
    assert moved_bytes(graph, graph.ops[0]) == 2 * 4 * 24


def test_bytes_are_those_of_the_dtype() -> None:
    """A cast from 1 byte an element to 8 moves 9 for each; a host scalar moves none."""
    cast = "value %small: x@0 f8e4m3fn[4,6]\n%y: y@0 u64[4,6], %n: z@0 int[] = aten.both.default(%small)"
    graph = parse_graph(SHAPES + cast)
    assert moved_bytes(graph, graph.ops[0]) == 9 * 24
