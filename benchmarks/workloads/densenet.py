"""DenseNet-121 on pictures: every layer reads the concatenation of all before it in its block.

Huang et al. 2017, "Densely Connected Convolutional Networks" (https://arxiv.org/abs/1608.06993). Concatenations
are tensors of their own, as in the usual programs, and not rebuilt in the backward pass: whether to rebuild
them is for a plan to decide.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import channels_last, minimised, pictures, sgd

from outgrow import Workload

BLOCKS = (6, 12, 24, 16)
GROWTH = 32
BOTTLENECK = 4 * GROWTH
STEM = 2 * GROWTH
CLASSES = 1000


def densenet121(*, batch: int = 64, size: int = 224, dtype: str = "float32") -> Workload:
    """Return the training of a DenseNet-121 on `batch` pictures of `size` x `size`."""
    torch.manual_seed(0)
    model = channels_last(network())
    x, y = pictures(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    return minimised(model, sgd(model), lambda x, y: F.cross_entropy(model(x), y), (x, y), dtype)


def network() -> nn.Sequential:
    """Return the network: logits (N, 1000) of pictures (N, 3, H, W)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, STEM, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(STEM),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = STEM
    for at, count in enumerate(BLOCKS):
        layers += [DenseLayer(channels + GROWTH * layer) for layer in range(count)]
        channels += GROWTH * count
        if at < len(BLOCKS) - 1:
            layers += [*_before(channels), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    head = (*_before(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))
    return nn.Sequential(*layers, *head)


class DenseLayer(nn.Module):
    """The input with 32 new channels after it, through a bottleneck of 128."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.grow = nn.Sequential(
            *_before(channels),
            nn.Conv2d(channels, BOTTLENECK, 1, bias=False),
            *_before(BOTTLENECK),
            nn.Conv2d(BOTTLENECK, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.grow(x)], dim=1)


def _before(channels: int) -> tuple[nn.Module, nn.Module]:
    """What stands before a convolution here."""
    return nn.BatchNorm2d(channels), nn.ReLU()
