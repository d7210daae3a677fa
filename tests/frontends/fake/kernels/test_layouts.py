"""Gradients that arrive in another layout than that of the input: abstract results lie as those of kernels."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outgrow.frontends.fake.kernels import ambiguous
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.tracing.capture import capture
from outgrow.runtime.execute import Run
from tests.frontends.fake.laid import Way, said, strides

WAYS: dict[str, Way] = {
    **{name: getattr(F, name) for name in ("relu", "relu6", "elu", "selu", "celu", "hardswish", "hardsigmoid")},
    **{name: getattr(F, name) for name in ("softplus", "silu", "mish", "gelu", "leaky_relu", "logsigmoid", "tanh")},
    "angle": torch.angle,
    "angle of complex numbers": lambda x: torch.angle(torch.complex(x, x * 2)),
    "glu": lambda x: F.glu(x, 1),
    "logit": lambda x: torch.logit(x.sigmoid()),
    "roll": lambda x: x.roll((1, 2), (1, 2)),
    "channel shuffle": lambda x: F.channel_shuffle(x, 2),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm, evaluated": lambda x: F.batch_norm(x, x.new_zeros(4), x.new_ones(4)),
    "group norm": lambda x: F.group_norm(x, 2),
    "cross entropies": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.zeros_like(x), reduction="none"),
    "pooled": lambda x: F.adaptive_avg_pool2d(x, 2),
    "padded": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "sampled": lambda x: F.grid_sample(
        x, x[..., :2].detach().contiguous(memory_format=torch.channels_last), align_corners=False
    ),
    "convolved": lambda x: F.conv2d(x, x.new_ones(4, 4, 3, 3), padding=1),
}


def layouts(shape: torch.Size) -> Iterator[Tensor]:
    """Tensors of a shape: contiguous, channels-last, of two dimensions exchanged, every other one, and one repeated."""
    yield torch.randn(shape)
    yield torch.randn(shape).contiguous(memory_format=torch.channels_last)
    yield torch.randn(shape).mT.contiguous().mT
    yield torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    yield torch.ones(()).expand(shape)


@pytest.mark.parametrize("name", WAYS)
def test_results_and_gradients_lie_as_kernels_lay_them(name: str) -> None:
    """Whatever the layout of the input, and that of the gradient that arrives."""
    way = WAYS[name]
    for x in list(layouts(torch.Size((2, 4, 6, 6))))[:4]:
        for arriving in layouts(way(x).shape):
            assert said(way, x, arriving) == strides(way, x, arriving), (x.stride(), arriving.stride())


def test_strides_of_size_1_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is looked at anew, as after a swap, lies as its kernel laid it: operators read formats off that."""
    monkeypatch.setattr(ambiguous, "_MOST_BYTES", 0)
    x = torch.randn(8).as_strided((2, 4, 1, 1), (4, 1, 4, 4))
    graph = capture(lambda x: (x * torch.full_like(x, 2.0)).exp(), [], [], (x,)).graph
    assert graph.values["mul"].strides != (x * torch.full_like(x, 2.0)).stride()
    run = Run(lower(graph), None, {"batch.0": x.untyped_storage()}, {}, 1 << 20)
    run.start()
    run.advance(2)
    run.forget("mul")
    found = run.lookup("mul")
    assert isinstance(found, Tensor)
    assert found.stride() == (x * torch.full_like(x, 2.0)).stride()


def test_an_operator_on_numbers_alone_has_no_layout() -> None:
    """It is none of the step's."""
    captured = capture(lambda x: x * int(torch.div(7, 2, rounding_mode="trunc")), [], [], (torch.ones(2),))
    assert [op.operator for op in captured.graph.ops] == ["aten.mul.Tensor"]
