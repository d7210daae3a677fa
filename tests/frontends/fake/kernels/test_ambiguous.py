"""What is contiguous and channels-last at once lies, while a step is traced, as its kernels lay it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outgrow.frontends.fake.kernels import ambiguous
from outgrow.frontends.fake.kernels.layouts import FORMATS
from outgrow.frontends.tracing.capture import capture
from tests.frontends.fake.laid import Way, said, strides

SHAPES = ((4, 8, 1, 1), (1, 8, 1, 1), (2, 1, 5, 5), (1, 1, 3, 3, 3), (2, 8, 1, 1, 1), (2, 4, 6, 1))


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


WAYS: dict[str, Way] = {
    **{name: getattr(F, name) for name in ("relu6", "hardswish", "hardsigmoid", "leaky_relu", "silu", "logsigmoid")},
    "scaled": lambda x: 2.0 * x + 1.0,
    "added": lambda x: x + x.exp(),
    "chosen": lambda x: torch.where(x > 0.5, x, x.detach().exp()),
    "filled": lambda x: x.masked_fill(x > 0.5, 0.25),
    "cast": lambda x: x.bfloat16().exp(),
    "normalised": lambda x: F.batch_norm(x, None, None, training=True) if len(x) > 1 else x,
    "evaluated": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), ones(x.shape[1])),
    "in groups": lambda x: F.group_norm(x, 1),
    "prelu": lambda x: F.prelu(x, ones(1)),
    "convolved": lambda x: torch.convolution(
        x, ones(6, x.shape[1], *places(x, 3)), None, places(x, 1), places(x, 1), places(x, 1), False, places(x, 0), 1
    ),
    "padded": lambda x: F.pad(x, (1, 1) * (x.dim() - 2)),
    "replicated": lambda x: F.pad(x, (1, 1) * (x.dim() - 2), mode="replicate"),
    "unpooled": lambda x: unpooled(x) if x.dim() == 4 else x,
    "larger": lambda x: F.interpolate(x, scale_factor=2),
    "joined": lambda x: torch.cat((x, x.detach().exp()), 1),
    "averaged": lambda x: x.detach() * x.mean((2, 3), keepdim=True),
    "judged": lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x), reduction="none"),
}


def places(x: Tensor, size: int) -> tuple[int, ...]:
    return (size,) * (x.dim() - 2)


def unpooled(x: Tensor) -> Tensor:
    return F.max_unpool2d(x, torch.zeros_like(x, dtype=torch.int64), [2, 1 if x.shape[-1] == 1 else 2])


def both_formats(shape: torch.Size) -> Iterator[Tensor]:
    """Tensors with the strides of contiguous ones, of channels-last ones, and of what a dimension was put to."""
    yield torch.randn(shape)
    if len(shape) in FORMATS:
        yield torch.empty(shape, memory_format=FORMATS[len(shape)]).normal_()
    if len(shape) == 4 and shape[-1] == 1:
        batch, channels, length, _ = shape
        yield torch.randn(batch, length, channels).mT.unsqueeze(-1)


@pytest.mark.parametrize("name", WAYS)
def test_results_and_gradients_lie_as_kernels_lay_them(name: str) -> None:
    """To the last stride, those of dimensions of size 1 included."""
    way = WAYS[name]
    for shape in SHAPES:
        for x in both_formats(torch.Size(shape)):
            for arriving in both_formats(way(x).shape):
                assert said(way, x, arriving) == strides(way, x, arriving), (x.stride(), arriving.stride())


def test_views_lie_as_torch_computes_them() -> None:
    """A matrix of one row gets a stride by which products take it for transposed or not."""
    keys = torch.randn(3, 25, 3)[..., 1:2].mT
    graph = capture(lambda x: x.view(3, 1, 25).exp(), [], [], (keys,)).graph
    (op,) = graph.ops
    (operand,) = op.operands
    assert graph.values[operand].strides == keys.view(3, 1, 25).stride() != keys.stride()


def test_kernels_are_asked_nothing_that_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what draws from the generator."""
    asked: list[object] = []
    monkeypatch.setattr(ambiguous, "forms_given", lambda func, *_: asked.append(func))
    monkeypatch.setattr(ambiguous, "_MOST_BYTES", 1 << 10)
    capture(torch.bernoulli, [], [], (torch.ones(2, 4, 1, 1),))
    capture(lambda x: 2.0 * x, [], [], (torch.ones(64, 8, 1, 1),))
    capture(lambda x: F.interpolate(x, scale_factor=32), [], [], (torch.ones(2, 1, 1, 1),))
    assert not asked


def test_an_operator_that_refuses_zeros_is_left_as_it_is() -> None:
    """The inverse of a matrix of zeros is none, and a shape is all that is asked for."""
    graph = capture(torch.linalg.inv, [], [], (torch.eye(1).expand(3, 2, 1, 1).contiguous(),)).graph
    assert graph.values[graph.results[0]].shape == (3, 2, 1, 1)
