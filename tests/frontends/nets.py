"""Which networks do the properties range over? Blocks of ordinary layers in any order, in layouts of every kind.

Maps are of several points, of one point, or of one channel; the last two are contiguous and channels-last at once.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer, RMSprop
from torch.utils.checkpoint import checkpoint

from tests.frontends.steps import Job

CLASSES = 5
OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.05, momentum=0.9),
    "adamw": partial(AdamW, lr=0.01),
    "rmsprop": partial(RMSprop, lr=0.001, centered=True),
}


class Block(nn.Module):
    """Layers that keep the shape of a map, and what is made of them."""

    def __init__(self, made: str, channels: int) -> None:
        super().__init__()
        self.made = BLOCKS[made]
        self.norm, self.other = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.groups, self.layer = nn.GroupNorm(1, channels), nn.LayerNorm(channels)
        self.point, self.weighing = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.near = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.linear, self.three = nn.Linear(channels, channels), nn.Linear(channels, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self, x)


def _mobile(net: Block, x: Tensor) -> Tensor:
    return x + net.other(net.point(F.relu6(net.norm(net.near(x)), inplace=True)))


def _weighed(net: Block, x: Tensor) -> Tensor:
    return x * F.hardsigmoid(net.weighing(F.relu(net.point(F.adaptive_avg_pool2d(x, 1)), inplace=True)))


def _branches(net: Block, x: Tensor) -> Tensor:
    one = net.norm(x)
    two = net.point(F.relu(one))
    return net.other(net.weighing(one)) + (one + two)


def _padded(net: Block, x: Tensor) -> Tensor:
    return net.norm(F.pad(x, (1, 1, 1, 1))[..., 1:-1, 1:-1]) + F.avg_pool2d(F.pad(x, (1, 1, 1, 1), "replicate"), 3, 1)


def _joined(net: Block, x: Tensor) -> Tensor:
    return net.norm(torch.cat((x, net.point(x)), 1).unflatten(1, (2, -1)).transpose(1, 2).sum(2))


def _resized(net: Block, x: Tensor) -> Tensor:
    return net.norm(F.avg_pool2d(F.interpolate(net.point(x), scale_factor=2), 2))


def _attended(net: Block, x: Tensor) -> Tensor:
    tokens = net.layer(x.flatten(2).transpose(1, 2))
    query, key, value = net.three(tokens).chunk(3, -1)
    shares = (query @ key.mT / math.sqrt(x.shape[1])).softmax(-1)
    return x + (F.dropout(shares, 0.1) @ value).transpose(1, 2).reshape(x.shape)


def _channels_last(net: Block, x: Tensor) -> Tensor:
    return x + net.linear(F.gelu(net.layer(net.near(x).permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)


def _computed_again(net: Block, x: Tensor) -> Tensor:
    again = checkpoint(lambda x: net.point(F.relu(net.norm(x))), x, use_reentrant=False)
    assert isinstance(again, Tensor), "a block returns one"
    return x + again


def _written(net: Block, x: Tensor) -> Tensor:
    x = net.norm(x) * 0.5
    x.add_(net.point(2 * x.detach())).mul_(0.9)
    return x


BLOCKS: Mapping[str, Callable[[Block, Tensor], Tensor]] = {
    "residual": lambda net, x: F.relu(x + net.norm(net.near(x)), inplace=True),
    "groups": lambda net, x: F.silu(net.groups(net.point(x))) + x,
    "gated": lambda net, x: net.norm(x) * torch.tanh(net.point(x)) + 2 * x,
    "elu": lambda net, x: F.elu(net.norm(x)) + F.leaky_relu(x),
    "larger": lambda net, x: torch.maximum(x, net.norm(net.point(x))),
    "centred": lambda net, x: x - x.mean((2, 3), keepdim=True) + net.norm(x),
    "chosen": lambda net, x: torch.where(x > 0, net.point(x), net.norm(x)),
    "dropped": lambda net, x: F.dropout(net.norm(x), 0.3),
    "mobile": _mobile,
    "weighed": _weighed,
    "branches": _branches,
    "padded": _padded,
    "joined": _joined,
    "resized": _resized,
    "attended": _attended,
    "channels last": _channels_last,
    "computed again": _computed_again,
    "written": _written,
}


def without_unnamed(layers: nn.Module, made: Callable[..., Tensor]) -> None:
    """Take away all layers that the code of a function does not name."""
    for name in [name for name, _ in layers.named_children() if name not in made.__code__.co_names]:
        delattr(layers, name)


def trained(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: str,
    batch: Callable[[], tuple[Tensor, Tensor]],
    *,
    autocast: bool,
    clipped: bool = False,
) -> Job:
    """A model, trained by one of `OPTIMIZERS` for a loss of what it gives and what is wanted."""
    optimizing = OPTIMIZERS[optimizer](model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizing.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            lost = loss(model(x), y)
        lost.backward()
        if clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizing.step()
        return lost

    return Job(step, (model,), (optimizing,), batch)


@dataclass(frozen=True)
class Net:
    """A network of blocks on maps of a size, and how it is trained."""

    blocks: tuple[str, ...]
    channels: int
    size: int
    channels_last: bool
    autocast: bool
    optimizer: str

    def __call__(self) -> Job:
        """Make it, with its step and its batches."""
        blocks = [Block(name, self.channels) for name in self.blocks]
        model = nn.Sequential(nn.Conv2d(3, self.channels, 1), *blocks, nn.Conv2d(self.channels, CLASSES, 1))
        form = torch.channels_last if self.channels_last else torch.contiguous_format
        model.to(memory_format=form)  # pyright: ignore[reportCallIssue]

        def batch() -> tuple[Tensor, Tensor]:
            size = (self.size, self.size)
            return torch.randn(3, 3, *size).contiguous(memory_format=form), torch.randint(0, CLASSES, (3, *size))

        return trained(model, F.cross_entropy, self.optimizer, batch, autocast=self.autocast)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Draw a network."""
    channels, size = draw(st.sampled_from(((24, 1), (8, 1), (1, 5), (8, 4), (6, 3))))
    blocks = draw(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=5))
    optimizer = draw(st.sampled_from(sorted(OPTIMIZERS)))
    return Net(tuple(blocks), channels, size, draw(st.booleans()), draw(st.booleans()), optimizer)
