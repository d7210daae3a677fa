"""How do workers compute a batch norm, if each has a part of the batch? By its sums, which they add.

ATen's operator takes mean and spread of all that it is given, so it can be cut along channels alone. Before a step is
divided, each of its calls is replaced by what it computes, which can be cut along all dimensions:

    mean          of x over batch and space
    variance      sum of (x - mean)^2 / count                                       `outgrow::centred_squares`
    y             (x - mean) * invstd * weight + bias, invstd = 1 / sqrt(variance + eps)   `outgrow::batch_normalised`
    dweight       sum of dy * z, where z = (x - mean) * invstd; dbias: sum of dy     `outgrow::batch_norm_sums`
    dx            weight * invstd * (dy - dbias / count - z * dweight / count)      `outgrow::batch_norm_gradient`

Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, section 3; `torch.nn.SyncBatchNorm` does the same.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from outgrow.frontends.tracing.traced import Traced

_aten, _LIBRARY = torch.ops.aten, torch.library.Library("outgrow", "FRAGMENT")


def batch_norms_by_sums(traced: Traced) -> None:
    """Replace the batch norms of a trace that train, and their gradients, by calls that can be cut anywhere.

    Those whose statistics have another dtype than what is normalised stay, and so do averages of varying weight.
    """
    graph = traced.module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm.default):
        x, _, _, _, _, trains, momentum, _ = node.args
        if trains is True and isinstance(momentum, float) and x.meta["val"].dtype == node.meta["val"][1].dtype:
            with graph.inserting_before(node):
                _replace(node, _forward(graph, *node.args))
    for node in graph.find_nodes(op="call_function", target=_aten.native_batch_norm_backward.default):
        x, mean, trains = node.args[1], node.args[5], node.args[7]
        if trains is True and mean is not None and x.meta["val"].dtype == mean.meta["val"].dtype:
            with graph.inserting_before(node):
                _replace(node, _backward(graph, *node.args))


def _forward(
    graph: fx.Graph,
    x: fx.Node,
    weight: fx.Node | None,
    bias: fx.Node | None,
    running_mean: fx.Node | None,
    running_var: fx.Node | None,
    _trains: bool,
    momentum: float,
    eps: float,
) -> list[fx.Node | None]:
    """Return the nodes of what is normalised, of the mean and of one over the spread; update the running ones."""
    dims, count = _around(x.meta["val"]), _count(x.meta["val"])
    mean = _call(graph, _aten.mean.dim, x, dims)
    variance = _call(graph, torch.ops.outgrow.centred_squares.default, x, mean, count)
    both = _call(graph, torch.ops.outgrow.batch_normalised.default, x, weight, bias, mean, variance, eps)
    y, invstd = (_call(graph, operator.getitem, both, at) for at in range(2))
    if running_mean is not None:
        _call(graph, _aten.lerp_.Scalar, running_mean, mean, momentum)
    if running_var is not None:
        _call(graph, _aten.mul_.Scalar, running_var, 1 - momentum)
        _call(graph, _aten.add_.Tensor, running_var, variance, alpha=momentum * count / max(1, count - 1))
    return [y, mean, invstd]


def _backward(
    graph: fx.Graph,
    gradient: fx.Node,
    x: fx.Node,
    weight: fx.Node | None,
    _running_mean: fx.Node | None,
    _running_var: fx.Node | None,
    mean: fx.Node,
    invstd: fx.Node,
    _trains: bool,
    _eps: float,
    mask: Sequence[bool],
) -> list[fx.Node | None]:
    """Return the nodes of the gradients of what was normalised, of weight and of bias."""
    sums = _call(graph, torch.ops.outgrow.batch_norm_sums.default, gradient, x, mean, invstd)
    of_weight, of_bias = (_call(graph, operator.getitem, sums, at) for at in range(2))
    given = (gradient, x, weight, mean, invstd, of_weight, of_bias, _count(x.meta["val"]))
    of_x = _call(graph, torch.ops.outgrow.batch_norm_gradient.default, *given) if mask[0] else None
    return [of_x, of_weight, of_bias]


def _call(graph: fx.Graph, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """Add a call to a graph, with the fake result that it has."""
    node = graph.call_function(function, args, kwargs)
    values = fx.map_arg(args, lambda item: item.meta["val"])
    given = next(item.meta["val"] for item in node.all_input_nodes)
    (first, *_) = given if isinstance(given, tuple) else (given,)
    with first.fake_mode, torch.no_grad():
        node.meta["val"] = function(*values, **fx.map_arg(kwargs, lambda item: item.meta["val"]))
    return node


def _replace(node: fx.Node, results: Sequence[fx.Node | None]) -> None:
    """Let all who take a result of a node take another's, and forget the node."""
    for user in list(node.users):
        assert user.target is operator.getitem, "an operator of several results is followed by the choice of one"
        found = results[int(str(user.args[1]))]
        if found is not None:
            user.replace_all_uses_with(found)
        user.graph.erase_node(user)
    node.graph.erase_node(node)


def _around(x: Tensor) -> list[int]:
    """Return all dimensions but that of the channels."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _count(x: Tensor) -> int:
    """Return how many elements a channel has."""
    return x.numel() // max(1, x.shape[1])


def _as_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *(1 for _ in x.shape[2:]))


# The operators ------------------------------------------------------------------------------------------------------


def _centred_squares(x: Tensor, mean: Tensor, count: int) -> Tensor:
    variance, own = torch.var_mean(x, _around(x), correction=0)
    return (variance + (own - mean).square()) * (_count(x) / count)


def _batch_normalised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    found, _, _ = _aten.native_batch_norm(x, weight, bias, mean, variance, training=False, momentum=0.0, eps=eps)
    return found, (variance + eps).rsqrt()


def _batch_norm_sums(gradient: Tensor, x: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
    given = (gradient, x, None, mean, invstd.pow(-2), None, None, False, 0.0)
    _, of_weight, of_bias = _aten.native_batch_norm_backward(*given, [False, True, True])
    return of_weight, of_bias


def _batch_norm_gradient(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    of_weight: Tensor,
    of_bias: Tensor,
    count: int,
) -> Tensor:
    scale = invstd if weight is None else weight * invstd
    slope = scale * invstd * of_weight / -count
    shift = scale * of_bias / -count - slope * mean
    found = torch.addcmul(_as_channels(shift, x), x, _as_channels(slope, x))
    return found.addcmul_(gradient, _as_channels(scale, x))


_GIVEN = "Tensor gradient, Tensor x"
_OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "centred_squares(Tensor x, Tensor mean, int count) -> Tensor": (
        _centred_squares,
        lambda _x, mean, _: torch.empty_like(mean),
    ),
    "batch_normalised(Tensor x, Tensor? w, Tensor? b, Tensor mean, Tensor variance, float eps) -> (Tensor, Tensor)": (
        _batch_normalised,
        lambda x, _w, _b, mean, *_: (torch.empty_like(x), torch.empty_like(mean)),
    ),
    f"batch_norm_sums({_GIVEN}, Tensor mean, Tensor invstd) -> (Tensor, Tensor)": (
        _batch_norm_sums,
        lambda _gradient, _x, mean, _: (torch.empty_like(mean), torch.empty_like(mean)),
    ),
    f"batch_norm_gradient({_GIVEN}, Tensor? weight, Tensor mean, Tensor invstd, Tensor w, Tensor b, int n) -> Tensor": (
        _batch_norm_gradient,
        lambda _, x, *__: torch.empty_like(x),
    ),
}
for _schema, (_run, _like) in _OPERATORS.items():
    _name = _LIBRARY.define(_schema)
    _LIBRARY.impl(_name, _run, "CPU")
    _LIBRARY.impl(_name, _like, "Meta")
