"""Do fusions hold what can become one kernel, and nothing else? Is a graph of fusions the step that it was made of?"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from outgrow.frontends.lowering.fusing import Fusion, fused, fusions
from outgrow.frontends.tracing.capture import capture
from outgrow.ir.graph import Graph, Op
from outgrow.ir.verify import verify

ROWS, WIDTH = 4, 8


def graph_of(function: Callable[..., object], *args: Tensor) -> Graph:
    """The graph of a function of tensors."""
    return capture(function, [], [], args).graph


def operators(found: list[Fusion]) -> list[list[str]]:
    """What the ops of fusions are called, without their library and overload."""
    return [[op.operator.split(".")[1] for op in fusion.ops] for fusion in found]


def _named(_fusion: Fusion) -> str:
    return "aten.outer.default"


def check_fusions(graph: Graph) -> None:
    """Its fusions make a graph whose results, state and inputs are its own, and whose ops are fewer, each in one."""
    found = fusions(graph)
    one = fused(graph, found, _named)
    verify(one)
    joined = [op for fusion in found for op in fusion.ops]
    assert len({op.name for op in joined}) == len(joined)
    assert len(one.ops) == len(graph.ops) - len(joined) + len(found)
    assert one.results == graph.results
    assert _of_the_step(one) == _of_the_step(graph)


def _of_the_step(graph: Graph) -> set[str]:
    return {name for name, storage in graph.storages.items() if storage.is_persistent}


def test_a_chain_is_one_fusion() -> None:
    """What lies between its ops is never born; what is read later is a result."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        twice = x * 2
        bent = F.gelu(twice)
        return (bent @ w) + bent

    graph = graph_of(function, torch.ones(ROWS, WIDTH), torch.ones(WIDTH, WIDTH))
    found = fusions(graph)
    assert operators(found) == [["mul", "gelu"]]
    assert (found[0].operands, len(found[0].results)) == (("batch.0",), 1)
    one = fused(graph, found, _named)
    assert len(one.ops) == len(graph.ops) - 1
    assert one.storages.keys() == graph.storages.keys() - {"mul"}
    verify(one)


def test_neighbours_that_share_nothing_stay_apart() -> None:
    """They need not be in memory at once."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = x * 2, y * 2
        return left.relu(), right.relu()

    graph = graph_of(function, torch.ones(WIDTH), torch.ones(WIDTH))
    assert operators(fusions(graph)) == [["mul", "relu"], ["mul", "relu"]]
    verify(fused(graph, fusions(graph), _named))


def test_an_op_between_divides() -> None:
    """A product of matrices, a write in place, random numbers, and the arithmetic of an optimizer are no parts."""
    x, w = torch.ones(ROWS, WIDTH), torch.ones(WIDTH, WIDTH)
    assert operators(fusions(graph_of(lambda x, w: ((x * 2) @ w).relu(), x, w))) == []
    assert operators(fusions(graph_of(lambda x: (x * 2).relu_() + 1, x))) == []
    drawn = fusions(graph_of(lambda x: F.dropout(x * 2).relu(), x))
    assert all("bernoulli" not in name for names in operators(drawn) for name in names)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = Adam(model.parameters())

    def step(x: Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()

    graph = capture(step, [model], [optimizer], (x,)).graph
    written = {op.name for op in graph.ops if set(graph.written(op)) & {"model.weight", "model.weight.exp_avg"}}
    assert written
    assert not written & {op.name for fusion in fusions(graph) for op in fusion.ops}


def test_ops_of_a_fusion_keep_their_order() -> None:
    """Also where the last one joins two chains."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        left = x * 2
        right = y * 3
        return left.relu() + right

    (fusion,) = fusions(graph_of(function, torch.ones(WIDTH), torch.ones(WIDTH)))
    assert [op.operator.split(".")[1] for op in fusion.ops] == ["mul", "mul", "relu", "add"]
    assert all(isinstance(op, Op) for op in fusion.ops)
