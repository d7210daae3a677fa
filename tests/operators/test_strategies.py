"""Are the ways to cut an operator those that its mathematics allows, with what each worker needs?"""

import pytest

from outgrow.operators.strategies import Partial, Same, Split, description, pieces, strategies
from outgrow.operators.tdl import Operand, OperatorCall, Reducer


def convolution(groups: int = 1, batch: int = 4, channels: int = 6, size: int = 8) -> OperatorCall:
    """A convolution of a window of three, padded by one."""
    x, w, bias = Operand(0, (batch, channels, size)), Operand(1, (8, channels // groups, 3)), Operand(2, (8,))
    return OperatorCall(
        "aten.convolution.default", (x, w, bias, (1,), (1,), (1,), False, (0,), groups), ((batch, 8, size),)
    )


def cuts(call: OperatorCall, workers: int = 2) -> list[str]:
    """The variables that can be cut."""
    return [strategy.cut for strategy in strategies(call, workers)]


def test_a_product_has_three_ways() -> None:
    """Rows, columns, and the dimension that is summed up."""
    x, y = Operand(0, (4, 6)), Operand(1, (6, 8))
    found = strategies(OperatorCall("aten.mm.default", (x, y), ((4, 8),)))
    assert {strategy.cut: strategy.outcomes for strategy in found} == {
        "i": (Split(0),),
        "j": (Split(1),),
        "k": (Partial(Reducer.SUM),),
    }


def test_a_bias_is_added_once() -> None:
    """All workers but the first take zeros for what is added to a sum."""
    call = convolution()
    by_channels = next(strategy for strategy in strategies(call) if strategy.cut == "ci")
    assert by_channels.once == (2,)
    assert [piece.zeros for piece in pieces(call, by_channels, 3)] == [(), (2,), (2,)]


def test_space_needs_halos_and_loses_its_padding() -> None:
    """The regions overlap, reach beyond the operand at its ends, and the part is not padded again."""
    call = convolution()
    by_space = next(strategy for strategy in strategies(call) if strategy.cut == "i0")
    first, second = pieces(call, by_space, 2)
    assert (first.regions[0][2], second.regions[0][2]) == ((-1, 5), (3, 9))
    assert first.call.arguments[4] == second.call.arguments[4] == (0,)


def test_a_group_is_not_cut_in_its_midst() -> None:
    """Its outputs would read other inputs; whole groups are fine, and nothing else is lost."""
    assert "co" not in cuts(convolution(groups=2), workers=3)
    assert "co" in cuts(convolution(groups=2), workers=2)
    assert "co" in cuts(convolution(groups=1), workers=3)
    assert "ci" not in cuts(convolution(groups=2))


def test_the_inner_one_of_joined_dimensions_is_not_cut() -> None:
    """Its pieces do not lie together."""
    call = OperatorCall("aten.view.default", (Operand(0, (4, 6)), (24,)), ((24,),))
    (strategy,) = strategies(call)
    assert (strategy.cut, strategy.step) == ("i0", 6)
    assert cuts(OperatorCall("aten.view.default", (Operand(0, (24,)), (4, 6)), ((4, 6),))) == ["i0"]


def test_a_dimension_of_one_may_be_new() -> None:
    """Beside one of which each worker has one, as `torch.kron` makes them."""
    call = OperatorCall("aten.view.default", (Operand(0, (4, 2)), (4, 1, 2, 1)), ((4, 1, 2, 1),))
    assert cuts(call) == ["i0", "i2"]


def test_results_share_their_variables() -> None:
    """Along the batch, the gradients of weight and bias are partial; along output channels, that of the input is."""
    y, x, w = Operand(0, (4, 8, 8)), Operand(1, (4, 6, 8)), Operand(2, (8, 6, 3))
    mask = (True, True, True)
    arguments = (y, x, w, (8,), (1,), (1,), (1,), False, (0,), 1, mask)
    found = strategies(OperatorCall("aten.convolution_backward.default", arguments, ((4, 6, 8), (8, 6, 3), (8,))))
    added = Partial(Reducer.SUM)
    assert {strategy.cut: strategy.outcomes for strategy in found} == {
        "b": (Split(0), added, added),
        "ci": (Split(1), Split(1), Same()),
        "co": (added, Split(0), Split(0)),
    }


def test_parts_are_not_smaller_than_nothing() -> None:
    """A dimension is cut among at most as many workers as it has steps; uneven parts cover it all."""
    call = convolution(batch=3)
    assert "b" in cuts(call, workers=3)
    assert "b" not in cuts(call, workers=4)
    by_space = next(strategy for strategy in strategies(call, 3) if strategy.cut == "i0")
    assert [piece.bounds for piece in pieces(call, by_space, 3)] == [(0, 3), (3, 6), (6, 8)]


def test_what_is_not_described_has_no_way() -> None:
    """An operator that is not in the catalogue, and a form of one that it does not describe."""
    assert strategies(OperatorCall("aten.sort.default", (Operand(0, (4,)),), ((4,), (4,)))) == ()
    x, w = Operand(0, (4, 6, 8)), Operand(1, (6, 8, 3))
    transposed = OperatorCall("aten.convolution.default", (x, w, None, (1,), (1,), (1,), True, (0,), 2), ((4, 16, 8),))
    assert description(transposed) is None
    assert strategies(transposed) == ()


@pytest.mark.parametrize(
    "call",
    [
        OperatorCall("aten.mean.dim", (Operand(0, ()), (0,), False), ((),)),
        OperatorCall("aten.sum.dim_IntList", (Operand(0, ()), (-1,), True), ((),)),
        OperatorCall("aten._softmax.default", (Operand(0, ()), 0, False), ((),)),
        OperatorCall("aten.transpose.int", (Operand(0, ()), 0, -1), ((),)),
    ],
)
def test_a_number_has_no_way(call: OperatorCall) -> None:
    """Torch takes it for a tensor of one dimension where one is to be named."""
    assert description(call) is not None
    assert strategies(call) == ()


def pool(shape: tuple[int, ...], dimensions: int) -> OperatorCall:
    """A mean over windows of three, padded by one, which leaves the shape as it is."""
    window = ((3,) * dimensions, (1,) * dimensions, (1,) * dimensions)
    return OperatorCall(
        f"aten.avg_pool{dimensions}d.default", (Operand(0, shape), *window, False, True, None), (shape,)
    )


@pytest.mark.parametrize("dimensions", [2, 3])
def test_pools_are_not_cut_in_space(dimensions: int) -> None:
    """Neither with a batch, whose images and channels are cut, nor without, where the channels come first."""
    space = (8,) * dimensions
    outcomes = [
        [strategy.outcomes for strategy in strategies(pool((*before, *space), dimensions))] for before in ((4, 6), (6,))
    ]
    assert outcomes == [[(Split(0),), (Split(1),)], [(Split(0),)]]
