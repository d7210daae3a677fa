"""Levels are the longest paths of waiting ops."""

from outgrow.ir.text import parse_graph
from outgrow.planning.published.levels import levels_of
from tests.planning.test_planners import chain


def test_in_a_chain_each_op_has_a_level_of_its_own() -> None:
    """Every op waits for the one before it, directly or not."""
    levels = levels_of(chain(4))
    assert levels.of == tuple(range(8))
    assert levels.latest_ancestor(7, 2) == 2
    assert levels.latest_ancestor(2, 7) is None


def test_the_optimizer_waits_for_the_whole_backward_pass() -> None:
    """An update is as far from an early gradient as the user's program puts it."""
    graph = parse_graph(
        """
        storage w parameter 8
        storage v parameter 8
        storage g gradient 8
        storage h gradient 8
        storage i gradient 8
        value %w: w@0 f32[2]
        value %v: v@0 f32[2]
        %g: g@0 f32[2] = my.one_backward(%w)
        %h: h@0 f32[2] = my.two_backward(%v)
        %i: i@0 f32[2] = my.three_backward(%h)
        %w1: w@1 f32[2] = aten.add_.Tensor(%w, %g)
        %v1: v@1 f32[2] = aten.add_.Tensor(%v, %i)
        """
    )
    levels = levels_of(graph)
    assert levels.of == (0, 0, 1, 2, 2)
    assert levels.latest_ancestor(3, 1) == 2


def test_a_write_in_place_waits_for_what_read_the_bytes_before() -> None:
    """Order is kept between a read and the write after it, as between a write and a read."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = my.one(%x)
        %b: b@0 f32[2] = my.two(%a)
        %a1: a@1 f32[2] = aten.relu_.default(%a)
        return %a1, %b
        """
    )
    assert levels_of(graph).of == (0, 1, 2)
