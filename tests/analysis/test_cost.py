"""Costs are known by what an op does, and modelled where nothing was measured."""

from outgrow.analysis.cost import Cost, cost_key, costs_of, from_parts, modelled, workspace_bound
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device
from outgrow.ir.text import parse_graph
from outgrow.operators.rows import pairs

DEVICE = Device("toy", flops_per_second=1e9, bytes_per_second=1e9, seconds_per_op=0.0)


def convolution(layout: str, weight: str) -> Graph:
    """A convolution of a 2-channel volume, volume and weight in the given strides."""
    return parse_graph(
        f"""
        storage x input 8192
        storage w parameter 432
        storage y 8192
        value %x: x@0 f32[1,2,8,8,8]:{layout}
        value %w: w@0 f32[2,2,3,3,3]:{weight}
        %y: y@0 f32[1,2,8,8,8]:{layout} = aten.convolution.default(%x, %w, None, [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1)
        return %y
        """  # noqa: E501
    )


CONTIGUOUS = ("[1024,512,64,8,1]", "[54,27,9,3,1]")
CHANNELS_LAST = ("[1024,1,128,16,2]", "[54,1,18,6,2]")


def test_the_roofline_takes_the_slower_of_arithmetic_and_movement() -> None:
    """A convolution is bound by flops on this device, an elementwise op by bytes."""
    graph = convolution(*CHANNELS_LAST)
    assert modelled(graph, graph.ops[0], DEVICE).seconds == 2 * 512 * 108 / 1e9
    other = parse_graph(
        "storage x input 4000\nstorage y 4000\nvalue %x: x@0 f32[1000]\n"
        "%y: y@0 f32[1000] = aten.relu.default(%x)\nreturn %y"
    )
    assert modelled(other, other.ops[0], DEVICE).seconds == 8000 / 1e9


def test_a_convolution_that_is_not_channels_last_may_need_workspace() -> None:
    """The bound is large where the library reorders inside, and small in channels-last."""
    contiguous, last = convolution(*CONTIGUOUS), convolution(*CHANNELS_LAST)
    assert workspace_bound(contiguous, contiguous.ops[0]) >= 3 * 4096
    assert workspace_bound(last, last.ops[0]) < 400


def test_equal_calls_share_a_key_and_other_layouts_do_not() -> None:
    """A cost is known by operator, arguments and layouts, not by names."""
    first, second, other = convolution(*CONTIGUOUS), convolution(*CONTIGUOUS), convolution(*CHANNELS_LAST)
    assert cost_key(first, first.ops[0]) == cost_key(second, second.ops[0])
    assert cost_key(first, first.ops[0]) != cost_key(other, other.ops[0])


def test_the_layout_that_an_op_asks_is_part_of_its_signature_and_no_name() -> None:
    """An op that asks only how a value lies costs the same beside another value that lies so."""

    def asking(name: str, strides: str) -> Graph:
        return parse_graph(
            f"storage {name} input 64\nstorage y 64\nvalue %{name}: {name}@0 f32[4,4]:{strides}\n"
            f"%y: y@0 f32[4,4]:[4,1] = aten.empty_like.default(like %{name})\nreturn %y"
        )

    first, second, other = asking("a", "[4,1]"), asking("b", "[4,1]"), asking("a", "[1,4]")
    assert cost_key(first, first.ops[0]) == cost_key(second, second.ops[0])
    assert cost_key(first, first.ops[0]) != cost_key(other, other.ops[0])


def test_a_measured_cost_replaces_the_model() -> None:
    """What is known by key is taken as it is."""
    graph = convolution(*CONTIGUOUS)
    known = {cost_key(graph, graph.ops[0]): Cost(7.0, 3, measured=True)}
    assert costs_of(graph, DEVICE, known) == {"convolution": Cost(7.0, 3, measured=True)}


def test_host_arithmetic_costs_next_to_nothing() -> None:
    """An op on host scalars takes no device time."""
    graph = parse_graph(
        "storage a scalar 0\nstorage b scalar 0\nvalue %a: a@0 float[]\n%b: b@0 float[] = operator.neg(%a)\nreturn %b"
    )
    assert modelled(graph, graph.ops[0], DEVICE) == Cost(1e-6)


def test_a_small_convolution_needs_room_for_its_columns() -> None:
    """im2col writes a kernel's worth of values, here 27 for each of 2 channels, for each of the 512 places."""
    graph = parse_graph(
        """
        storage x input 4096
        storage w parameter 3456
        storage y 32768
        value %x: x@0 f32[1,2,8,8,8]:[1024,512,64,8,1]
        value %w: w@0 f32[16,2,3,3,3]
        %y: y@0 f32[1,16,8,8,8] = aten.convolution.default(%x, %w, None, [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1)
        return %y
        """  # noqa: E501
    )
    assert workspace_bound(graph, graph.ops[0]) == 4 * 27 * 2 * 512 + 4096 + 3456 + 32768


def gradients(stride: str = "[1, 1, 1]", transposed: str = "False") -> Graph:
    """The gradient of the source of a convolution in channels-last."""
    return parse_graph(
        f"""
        storage g input 65536
        storage x input 8192
        storage w parameter 432
        storage dx 8192
        value %g: g@0 f32[1,2,16,16,32]:[16384,1,1024,64,2]
        value %x: x@0 f32[1,2,8,8,16]:[2048,1,256,32,2]
        value %w: w@0 f32[2,2,2,2,2]:[16,1,8,4,2]
        %dx: dx@0 f32[1,2,8,8,16]:[2048,1,256,32,2] = aten.convolution_backward.default(%g, %x, %w, [0], {stride}, [0, 0, 0], [1, 1, 1], {transposed}, [0, 0, 0], 1, [True, False, False])
        return %dx
        """  # noqa: E501
    )


def test_transposed_convolutions_and_gradients_of_strided_ones_copy_an_operand() -> None:
    """Even in channels-last, room for the largest operand is foreseen."""
    graphs = gradients(), gradients(stride="[2, 2, 2]"), gradients(transposed="True")
    plain, strided, transposed = (workspace_bound(graph, graph.ops[0]) for graph in graphs)
    assert strided - plain == transposed - plain == 65536


def test_where_the_library_reorders_gradients_there_is_room_for_it() -> None:
    """For the source once more, and two planes of its columns: 8 values for each of 2 channels, for 8 x 16 places."""
    graph = gradients()
    wide, narrow = (Device("cpu", 1e9, 1e9, reorders_gradients=flag) for flag in (False, True))
    more = modelled(graph, graph.ops[0], narrow).workspace_bytes - modelled(graph, graph.ops[0], wide).workspace_bytes
    assert more == 8192 + 2 * 4 * 8 * 2 * 8 * 16


def test_an_operand_may_be_given_twice() -> None:
    """The gradient that comes in may be the source itself."""
    graph = parse_graph(
        """
        storage x input 4096
        storage w parameter 432
        storage dx 4096
        value %x: x@0 f32[1,2,8,8,8]:[1024,512,64,8,1]
        value %w: w@0 f32[2,2,3,3,3]
        %dx: dx@0 f32[1,2,8,8,8] = aten.convolution_backward.default(%x, %x, %w, [0], [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1, [True, False, False])
        return %dx
        """  # noqa: E501
    )
    cost = modelled(graph, graph.ops[0], Device("cpu", 1e9, 1e9, reorders_gradients=True))
    assert cost.workspace_bytes > 4 * 27 * 2 * 512


def test_a_large_convolution_has_no_columns() -> None:
    """The library reorders what it touches instead; a volume counts as large by all its sizes but the last."""
    graph = parse_graph(
        """
        storage x input 524288
        storage w parameter 216
        storage y 262144
        value %x: x@0 f32[1,2,64,256,4]
        value %w: w@0 f32[1,2,3,3,3]
        %y: y@0 f32[1,1,64,256,4] = aten.convolution.default(%x, %w, None, [1], [1], [1], False, [0], 1)
        return %y
        """
    )
    assert workspace_bound(graph, graph.ops[0]) == 3 * 524288


def test_parts_share_the_seconds_of_the_whole() -> None:
    """The two gradients of a convolution take as many flops, so each half; either may need the workspace."""
    graph = parse_graph(
        """
        storage x input 64
        storage w parameter 64
        storage g input 64
        storage a 64
        storage b 64
        value %x: x@0 f32[1,4,4]
        value %w: w@0 f32[4,4,1]
        value %g: g@0 f32[1,4,4]
        back: %a: a@0 f32[1,4,4], %b: b@0 f32[4,4,1], _ = aten.convolution_backward.default(%g, %x, %w, None, [1], [0], [1], False, [0], 1, [True, True, False])
        return %a, %b
        """  # noqa: E501
    )
    known = {cost_key(graph, graph.ops[0]): Cost(3.0, 16, measured=True)}
    costs = costs_of(graph, DEVICE, known)
    assert list(costs) == ["back", "back.weight", "back.input"]
    assert costs["back.weight"] == costs["back.input"] == Cost(1.5, 16, measured=True)
    assert from_parts([Cost(1.0, 4), Cost(2.0, 16)]) == Cost(3.0, 16, measured=True)
    assert from_parts([Cost(1.0, 16, 16), Cost(1.0, 8, 5)]) == Cost(2.0, 16, 13, measured=True)


def test_turns_share_the_seconds_in_proportion_to_the_operands() -> None:
    """Three quarters of the bytes take three quarters of the time; of nothing, each takes as much."""
    text = """
        storage a input 48
        storage b input 16
        storage y 64
        value %a: a@0 f32[12]
        value %b: b@0 f32[4]
        %y: y@0 f32[16] = aten.cat.default([%a, %b])
        return %y
        """
    graph = parse_graph(text)
    costs = costs_of(graph, DEVICE, {cost_key(graph, graph.ops[0]): Cost(4.0, 16, measured=True)})
    assert costs["cat.0"] == Cost(3.0, 16, measured=True)
    assert costs["cat.1"] == Cost(1.0, 16, measured=True)
    empty = parse_graph(text.replace("[12]", "[0]").replace("[4]", "[0]").replace("[16]", "[0]"))
    assert costs_of(empty, DEVICE, {cost_key(empty, empty.ops[0]): Cost(4.0)})["cat.1"] == Cost(2.0)


LOSS = """
storage g input 4
storage l input 33554432
storage t input 1024
storage n input 4
storage a 33554432
storage b 33554432
value %g: g@0 f32[]
value %l: l@0 f32[128,65536]
value %t: t@0 i64[128]
value %n: n@0 f32[]
%a: a@0 f32[128,65536] = aten.nll_loss_backward.default(%g, %l, %t, None, 1, -100, %n)
back: %b: b@0 f32[128,65536] = aten._log_softmax_backward_data.default(%a, %l, 1, :torch.float32)
return %b
"""


def test_two_ops_as_one_take_as_long_as_both_until_that_is_measured() -> None:
    """It holds the rows that go at a time, half of the table; what was measured is known by its own key."""
    graph = parse_graph(LOSS)
    ((first, second, one),) = pairs(graph)
    costs = costs_of(graph, DEVICE, {})
    assert costs[one.name].seconds == costs[first.name].seconds + costs[second.name].seconds
    assert costs[one.name].workspace_bytes >= 64 * 65536 * 4
    measured = Cost(1.0, 5, measured=True)
    assert costs_of(graph, DEVICE, {cost_key(graph, one): measured})[one.name] == measured
