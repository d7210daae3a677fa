"""Does a division of a step communicate as little as it can, as much as it says, and hold its share?"""

from functools import cache
from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outgrow.ir.machine import Device, LinkRates, Machine, Peers
from outgrow.operators.dataflow import Dataflow, Node, Tensor
from outgrow.operators.regions import Range, Region
from outgrow.operators.strategies import Partial, Split, chunks, pieces, strategies
from outgrow.operators.tdl import Operand, OperatorCall, Reducer, Shape
from outgrow.planning.partition import level as choosing
from outgrow.planning.partition import options
from outgrow.planning.partition.lacking import WHOLE, fetched, handed_on
from outgrow.planning.partition.level import Level
from outgrow.planning.partition.partition import factors, partition
from outgrow.planning.partition.room import room_of

ITEM = 4


def product_of(name: str, left: str, right: str, tensors: dict[str, Tensor]) -> Node:
    """A matrix product that makes a tensor of its name."""
    (i, k), (_, j) = tensors[left].shape, tensors[right].shape
    tensors[name] = Tensor(name, (i, j), ITEM, name)
    call = OperatorCall("aten.mm.default", (Operand(0, (i, k)), Operand(1, (k, j))), ((i, j),))
    return Node(name, call, (left, right), (name,))


def layers(sizes: tuple[int, ...], rows: int) -> Dataflow:
    """Rows go through matrices, one after the other; what comes out is multiplied back to the first one's gradient."""
    tensors = {"x": Tensor("x", (rows, sizes[0]), ITEM, "x")}
    nodes: list[Node] = []
    present = "x"
    for at, shape in enumerate(pairwise(sizes)):
        tensors[f"w{at}"] = Tensor(f"w{at}", shape, ITEM, f"w{at}", lasting=True)
        nodes.append(product_of(f"y{at}", present, f"w{at}", tensors))
        present = f"y{at}"
    return Dataflow(tensors, tuple(nodes))


def branches(rows: int, inner: int, columns: int) -> Dataflow:
    """Two products of one matrix, and the sum of both, which is no gradient."""
    tensors = {"x": Tensor("x", (rows, inner), ITEM, "x")}
    tensors |= {name: Tensor(name, (inner, columns), ITEM, name, lasting=True) for name in ("a", "b")}
    nodes = [product_of("u", "x", "a", tensors), product_of("v", "x", "b", tensors)]
    shape = (rows, columns)
    tensors["s"] = Tensor("s", shape, ITEM, "s")
    call = OperatorCall("aten.add.Tensor", (Operand(0, shape), Operand(1, shape)), (shape,))
    return Dataflow(tensors, (*nodes, Node("s", call, ("u", "v"), ("s",))))


def received(step: Dataflow, states: dict[str, int], chosen: dict[str, int], ways: int) -> int:
    """The bytes of a choice of states and strategies (0: whole), element by element."""
    return sum(
        received_by(
            node, tuple(states[name] for name in (*node.operands, *node.results) if name), chosen[node.name], ways
        )
        for node in step.nodes
    )


@cache
def received_by(node: Node, states: tuple[int, ...], chosen: int, ways: int) -> int:
    """The bytes that one node needs from others: states of its operands and of its result."""
    total = 0
    strategy = (None, *strategies(node.call, ways))[chosen]
    parts = None if strategy is None else pieces(node.call, strategy, ways)
    *of_operands, of_result = states
    for operand, state in zip(node.call.operands, of_operands, strict=True):
        regions = None if parts is None else [piece.regions[operand.position] for piece in parts]
        total += counted(operand.shape, state, regions, ways)
    (shape,) = node.call.shapes
    assert shape is not None
    if strategy is not None and parts is not None:
        for worker in range(ways):
            mine = owned(shape, of_result, worker, ways)
            match strategy.outcomes[0]:
                case Split(dim):
                    made = within(shape, {dim: parts[worker].bounds})
                    total += int((mine & ~made).sum())
                case Partial():
                    total += int(mine.sum()) * (ways - 1)
                case _:
                    pass
    return total * ITEM


def counted(shape: Shape, state: int, regions: list[Region] | None, ways: int) -> int:
    """The elements that workers need and have not."""
    total = 0
    for worker in range(ways):
        bounds = (
            {}
            if regions is None
            else {dim: (max(low, 0), min(high, shape[dim])) for dim, (low, high) in enumerate(regions[worker])}
        )
        total += int((within(shape, bounds) & ~owned(shape, state, worker, ways)).sum())
    return total


def owned(shape: Shape, state: int, worker: int, ways: int) -> NDArray[np.bool_]:
    """Which elements a worker has."""
    return within(shape, {} if state == WHOLE else {state: chunks(shape[state], ways)[worker]})


def within(shape: Shape, bounds: dict[int, Range]) -> NDArray[np.bool_]:
    """Which elements lie in ranges of some dimensions."""
    found = np.zeros(shape, dtype=bool)
    found[tuple(slice(*bounds[dim]) if dim in bounds else slice(None) for dim in range(len(shape)))] = True
    return found


shapes = st.lists(st.integers(2, 7), min_size=1, max_size=3).map(tuple)


@given(shapes, st.data(), st.integers(2, 4))
def test_what_is_fetched_is_what_is_needed_and_not_there(shape: Shape, data: st.DataObject, ways: int) -> None:
    """Element by element, for any region of each worker, also beyond the bounds."""
    dims = [dim for dim, size in enumerate(shape) if -(-size // ways) * (ways - 1) < size]
    state = data.draw(st.sampled_from([*dims, WHOLE]))
    ranges = [st.tuples(st.integers(-2, size - 1), st.integers(1, size + 2)).map(_range) for size in shape]
    regions = data.draw(st.none() | st.lists(st.tuples(*ranges), min_size=ways, max_size=ways))
    given_regions = None if regions is None else tuple(regions)
    assert fetched(shape, shape, (state,), given_regions, 1, ways) == (counted(shape, state, regions, ways),)


def _range(pair: tuple[int, int]) -> Range:
    begin, length = pair
    return (begin, max(begin + length, 1))


@given(shapes, st.data(), st.integers(2, 4))
def test_what_is_handed_on_is_what_is_owned_and_not_made(shape: Shape, data: st.DataObject, ways: int) -> None:
    """Element by element, for results that are split; those that are partial come from all others."""
    dims = [dim for dim, size in enumerate(shape) if -(-size // ways) * (ways - 1) < size]
    state = data.draw(st.sampled_from([*dims, WHOLE]))
    dim = data.draw(st.sampled_from(range(len(shape))))
    cuts = data.draw(st.lists(st.integers(0, shape[dim]), min_size=ways - 1, max_size=ways - 1).map(sorted))
    bounds = tuple(zip([0, *cuts], [*cuts, shape[dim]], strict=True))
    expected = sum(
        int((owned(shape, state, worker, ways) & ~within(shape, {dim: bounds[worker]})).sum()) for worker in range(ways)
    )
    assert handed_on(shape, shape, Split(dim), bounds, (state,), 1, ways) == (expected,)
    (partial,) = handed_on(shape, shape, Partial(Reducer.SUM), bounds, (state,), 1, ways)
    assert partial == prod(shape) * (ways - 1) * (ways if state == WHOLE else 1)


@pytest.mark.parametrize("small", [0, 1 << 20])
@pytest.mark.parametrize(
    "step", [layers((6, 4, 8), 2), layers((2, 9, 3), 12), layers((5, 5, 5, 2), 4), branches(6, 4, 8), branches(2, 9, 3)]
)
def test_no_choice_communicates_less(step: Dataflow, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all states of all tensors and all strategies of all nodes, counted element by element."""
    monkeypatch.setattr(options, "SMALL_BYTES", small)
    found = partition(step, 2)
    room = room_of(step)
    domains = {name: options.states_of(tensor, 2, room) for name, tensor in step.tensors.items()}
    ways = {node.name: range(1 + len(strategies(node.call, 2))) for node in step.nodes}
    least = min(
        received(step, dict(zip(domains, states, strict=True)), dict(zip(ways, chosen, strict=True)), 2)
        for states in product(*domains.values())
        for chosen in product(*ways.values())
    )
    assert found.communicated_bytes == least
    assert found.levels[0].is_exact


def test_calls_that_are_alike_are_cut_alike_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no less than the cheapest choice, and it is said that it may cost more."""
    monkeypatch.setattr(options, "SMALL_BYTES", 0)
    step = layers((8, 8, 8, 8, 8), 12)
    exact = partition(step, 2)
    monkeypatch.setattr(choosing, "MOST_CALLS", 0)
    found = partition(step, 2)
    assert found.communicated_bytes >= exact.communicated_bytes
    assert [level.is_exact for level in (*exact.levels, *found.levels)] == [True, False]
    (level,) = found.levels
    assert level.strategies["y1"] == level.strategies["y2"]


def test_where_exchanges_begin_slowly_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are made by all rather than sent; the bytes that are told are those that are sent."""
    monkeypatch.setattr(options, "SMALL_BYTES", 1 << 20)
    step = layers((6, 4, 8), 2)
    slow = Machine("slow", Device("gpu", 1e12, 1e11), LinkRates(1e9, 1e9), peers=(Peers(2, 1e9, 1.0),))
    found, quick = partition(step, 2, machine=slow), partition(step, 2)
    exchanges = [sum(bytes_of > 0 for bytes_of in item.levels[0].received.values()) for item in (found, quick)]
    assert exchanges[0] <= exchanges[1]
    assert found.communicated_bytes == 2 * sum(found.levels[0].received.values())


def test_every_worker_holds_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what lasts, exactly where sizes can be divided; at most that and what it receives of all at once."""
    monkeypatch.setattr(options, "SMALL_BYTES", 0)
    step = layers((16, 64, 32, 16), 64)
    lasting = sum(tensor.size_bytes for tensor in step.tensors.values() if tensor.lasting)
    for workers in (2, 4, 8, 12):
        found = partition(step, workers)
        assert found.workers == workers
        exactly = workers in (2, 4, 8)
        assert found.lasting_bytes_per_worker == lasting // workers or not exactly
        assert found.peak_bytes_per_worker <= found.in_core_peak_bytes


def test_a_step_for_one_worker_is_as_it_was() -> None:
    """Nothing is communicated, and all of it is held."""
    step = layers((4, 8, 4), 4)
    found = partition(step, 1)
    assert (found.levels, found.communicated_bytes) == ((), 0)
    assert found.peak_bytes_per_worker == found.in_core_peak_bytes
    with pytest.raises(ValueError, match="0 workers"):
        partition(step, 0)


def test_an_operator_without_description_is_whole_and_named() -> None:
    """It needs all of its operands; what it gives is free to be cut."""
    call = OperatorCall("aten.sort.default", (Operand(0, (64, 512)),), ((64, 512), (64, 512)))
    tensors = {name: Tensor(name, (64, 512), ITEM, name) for name in ("x", "s", "n")}
    found = partition(Dataflow(tensors, (Node("s", call, ("x",), ("s", "n")),)), 2)
    assert found.whole == ("aten.sort.default",)
    assert found.communicated_bytes == 64 * 512 * ITEM
    (level,) = found.levels
    assert isinstance(level, Level)
    assert level.strategies == {"s": None}


def test_factors_are_prime_and_descend() -> None:
    """Their product is the number."""
    for number in range(1, 65):
        found = factors(number)
        assert prod(found) == number
        assert list(found) == sorted(found, reverse=True)
