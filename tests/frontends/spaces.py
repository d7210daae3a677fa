"""Which networks on lines, planes and volumes do the properties range over? Convolving, pooling and resizing layers.

A space has one, two or three dimensions, and a layer gives back as many points as it was given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.frontends.nets import OPTIMIZERS, trained, without_unnamed
from tests.frontends.steps import Job

CLASSES = 4
CONVOLUTION: Mapping[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: Mapping[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH: Mapping[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE: Mapping[int, type[nn.Module]] = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
MOST: Mapping[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN: Mapping[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTED: Mapping[int, Callable[..., Tensor]] = {
    1: F.adaptive_max_pool1d,
    2: F.adaptive_max_pool2d,
    3: F.adaptive_max_pool3d,
}
UNPOOLED: Mapping[int, Callable[..., Tensor]] = {1: F.max_unpool1d, 2: F.max_unpool2d, 3: F.max_unpool3d}
DROPPED: Mapping[int, Callable[..., Tensor]] = {1: F.dropout1d, 2: F.dropout2d, 3: F.dropout3d}
LINEAR: Mapping[int, str] = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Layers(nn.Module):
    """Some of layers of every kind for so many dimensions, and what is made of them."""

    def __init__(self, made: str, channels: int, dims: int) -> None:
        super().__init__()
        self.made, self.dims = MADE[made], dims
        self.same = CONVOLUTION[dims](channels, channels, 3, padding="same", padding_mode="circular")
        self.wide = CONVOLUTION[dims](channels, channels, 3, padding=2, dilation=2, bias=False)
        self.halved = CONVOLUTION[dims](channels, 2 * channels, 2, stride=2)
        self.whole = TRANSPOSED[dims](2 * channels, channels, 2, stride=2)
        self.spread = TRANSPOSED[dims](channels, channels, 3, padding=1, groups=channels)
        self.depth = CONVOLUTION[dims](channels, 2 * channels, 3, padding=1, groups=channels)
        self.point = CONVOLUTION[dims](2 * channels, channels, 1)
        self.batch = BATCH[dims](channels, momentum=0.3)
        self.frozen = BATCH[dims](channels).eval().requires_grad_(requires_grad=False)
        self.instance = INSTANCE[dims](channels, affine=True, track_running_stats=True)
        self.groups, self.slopes = nn.GroupNorm(2, channels), nn.PReLU(channels)
        without_unnamed(self, self.made)

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self, x)


def _pooled(net: Layers, x: Tensor) -> Tensor:
    return x + F.interpolate(MOST[net.dims](net.same(x), 2, ceil_mode=True), x.shape[2:])


def _averaged(net: Layers, x: Tensor) -> Tensor:
    return x * torch.sigmoid(MEAN[net.dims](net.wide(x), 3, 1, 1, count_include_pad=False))


def _adapted(net: Layers, x: Tensor) -> Tensor:
    return x + net.batch(F.interpolate(ADAPTED[net.dims](x, 2), x.shape[2:], mode=LINEAR[net.dims]))


def _unpooled(net: Layers, x: Tensor) -> Tensor:
    most, where = MOST[net.dims](net.same(x), 2, return_indices=True)
    return x + UNPOOLED[net.dims](most, where, 2, output_size=x.shape[2:])


def _scaled(net: Layers, x: Tensor) -> Tensor:
    larger = F.interpolate(x, scale_factor=2, mode=LINEAR[net.dims], align_corners=True)
    return net.same(F.interpolate(larger, x.shape[2:], mode="area"))


def _down(net: Layers, x: Tensor) -> Tensor:
    return x + net.whole(F.leaky_relu(net.halved(x), 0.1, inplace=True), output_size=x.shape[2:])


def _skipped(net: Layers, x: Tensor) -> Tensor:
    return net.point(torch.cat((F.relu(net.batch(x)), net.spread(x)), 1))


def _squeezed(net: Layers, x: Tensor) -> Tensor:
    weights = net.point(net.depth(x)).flatten(2).logsumexp(-1).softmax(1)
    return x * weights.reshape(*weights.shape, *[1] * net.dims)


def _moved(net: Layers, x: Tensor) -> Tensor:
    if net.dims == 1:
        return x.roll(1, -1) + net.same(x)
    where = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, size) for size in x.shape[2:]], indexing="ij"), -1)
    shift = net.wide(x).mean().tanh() * 0.1
    grid = (where.flip(-1) + shift).expand(len(x), *where.shape)
    return F.grid_sample(x, grid.to(x.dtype), padding_mode="border", align_corners=False)


def _padded(net: Layers, x: Tensor) -> Tensor:
    return MEAN[net.dims](F.pad(net.same(x), [1] * 2 * net.dims, "reflect"), 3, 1)


def _flipped(net: Layers, x: Tensor) -> Tensor:
    return 0.5 * (net.same(x) + net.same(x.flip(-1)).flip(-1))


def _shared(net: Layers, x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return torch.cat((x[:, half:], net.same(x)[:, :half].abs().clamp(max=1.5)), 1)


MADE: Mapping[str, Callable[[Layers, Tensor], Tensor]] = {
    "residual": lambda net, x: F.relu(x + net.batch(net.same(x))),
    "dilated": lambda net, x: F.gelu(net.wide(x)) + x,
    "depthwise": lambda net, x: net.point(F.hardswish(net.depth(x))) + x,
    "instance": lambda net, x: net.slopes(net.instance(net.same(x))),
    "groups": lambda net, x: F.silu(net.groups(net.spread(x)), inplace=True),
    "frozen": lambda net, x: net.frozen(net.same(x)) + x,
    "dropped": lambda net, x: DROPPED[net.dims](net.same(x), 0.3) + F.alpha_dropout(x, 0.2, training=True),
    "pooled": _pooled,
    "averaged": _averaged,
    "adapted": _adapted,
    "unpooled": _unpooled,
    "scaled": _scaled,
    "down": _down,
    "skipped": _skipped,
    "squeezed": _squeezed,
    "moved": _moved,
    "padded": _padded,
    "flipped": _flipped,
    "shared": _shared,
}


def _dice(x: Tensor, y: Tensor) -> Tensor:
    given, wanted = x.softmax(1).flatten(2), F.one_hot(y, CLASSES).movedim(-1, 1).to(x.dtype).flatten(2)
    return 1 - (2 * (given * wanted).sum(-1) / (given + wanted).sum(-1)).mean()


def _focal(x: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(x, y, reduction="none")
    return ((1 - torch.exp(-each)).square() * each).mean()


def _hardest(x: Tensor, y: Tensor) -> Tensor:
    each = F.cross_entropy(x, y, reduction="none").flatten(1)
    return each.topk(max(1, each.shape[1] // 3), -1).values.mean()


def _smooth(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y) + 0.1 * x.diff(dim=-1).square().mean() + 0.1 * torch.linalg.vector_norm(x)


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": F.cross_entropy,
    "dice": _dice,
    "focal": _focal,
    "hardest": _hardest,
    "smooth": _smooth,
}


@dataclass(frozen=True)
class Net:
    """A network of layers on spaces, its loss, and how it is trained."""

    layers: tuple[str, ...]
    loss: str
    dims: int
    size: int
    channels_last: bool
    autocast: bool
    optimizer: str

    def __call__(self) -> Job:
        """Make it, with its step and its batches."""
        channels, last = 4, {2: torch.channels_last, 3: torch.channels_last_3d}
        layers = (Layers(name, channels, self.dims) for name in self.layers)
        kind = CONVOLUTION[self.dims]
        model = nn.Sequential(kind(2, channels, 1), *layers, kind(channels, CLASSES, 1))
        form = last[self.dims] if self.channels_last and self.dims in last else torch.contiguous_format
        model.to(memory_format=form)  # pyright: ignore[reportCallIssue]

        def batch() -> tuple[Tensor, Tensor]:
            size = (self.size,) * self.dims
            return torch.randn(2, 2, *size).contiguous(memory_format=form), torch.randint(0, CLASSES, (2, *size))

        return trained(model, LOSSES[self.loss], self.optimizer, batch, autocast=self.autocast)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Draw a network."""
    layers = draw(st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=4))
    loss, optimizer = draw(st.sampled_from(sorted(LOSSES))), draw(st.sampled_from(sorted(OPTIMIZERS)))
    dims, size = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((4, 5)))
    return Net(tuple(layers), loss, dims, size, draw(st.booleans()), draw(st.booleans()), optimizer)
