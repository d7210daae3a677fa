"""Inception-V3 on pictures: modules of parallel branches whose results are concatenated.

Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision"
(https://arxiv.org/abs/1512.00567), without the auxiliary classifier. A module is written as the list of its
branches, a branch as the list of its convolutions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import channels_last, minimised, pictures, sgd

from outgrow import Workload

CLASSES = 1000
SMALLEST = 75


def inception_v3(*, batch: int = 64, size: int = 299, dtype: str = "float32") -> Workload:
    """Return the training of an Inception-V3 on `batch` pictures of `size` x `size`.

    Raises `ValueError` for a size below 75, of which nothing is left before the end.
    """
    if size < SMALLEST:
        raise ValueError(f"size {size} is below {SMALLEST}, the smallest picture that has a pixel left at the end.")
    torch.manual_seed(0)
    model = channels_last(network())
    x, y = pictures(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    return minimised(model, sgd(model), lambda x, y: F.cross_entropy(model(x), y), (x, y), dtype)


def network() -> nn.Sequential:
    """Return the network: logits (N, 1000) of pictures (N, 3, H, W)."""
    return nn.Sequential(
        Convolution(3, 32, 3, stride=2),
        Convolution(32, 32, 3),
        Convolution(32, 64, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
        Convolution(64, 80, 1),
        Convolution(80, 192, 3),
        nn.MaxPool2d(3, stride=2),
        fives(192, pooled=32),
        fives(256, pooled=64),
        fives(288, pooled=64),
        first_reduction(288),
        sevens(768, width=128),
        sevens(768, width=160),
        sevens(768, width=160),
        sevens(768, width=192),
        second_reduction(768),
        spread(1280),
        spread(2048),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(2048, CLASSES),
    )


class Convolution(nn.Sequential):
    """Convolution, batch normalization, relu."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, padding, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(channels_out, eps=1e-3), nn.ReLU())


class Branches(nn.Module):
    """The results of several modules on one input, concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


Shape = tuple[int, int] | tuple[int, tuple[int, int]]
"""Channels and kernel of a convolution that keeps the size."""


def chain(channels: int, *shapes: Shape) -> list[nn.Module]:
    """Return convolutions one after the other, each of which keeps the size."""
    layers: list[nn.Module] = []
    for width, kernel in shapes:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        layers.append(Convolution(channels, width, kernel, padding=padding))
        channels = width
    return layers


def branch(channels: int, *shapes: Shape) -> nn.Sequential:
    """Return a branch of convolutions that keep the size."""
    return nn.Sequential(*chain(channels, *shapes))


def pooled_branch(channels: int, width: int) -> nn.Sequential:
    """Return the branch that averages before its convolution."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), Convolution(channels, width, 1))


def halving(channels: int, width: int, *shapes: Shape) -> nn.Sequential:
    """Return a branch whose last convolution, of 3 x 3, halves the size."""
    before: Sequence[nn.Module] = chain(channels, *shapes)
    entry = shapes[-1][0] if shapes else channels
    return nn.Sequential(*before, Convolution(entry, width, 3, stride=2))


def fives(channels: int, pooled: int) -> Branches:
    """Return the module with a 5 x 5 convolution (figure 5 of the paper)."""
    return Branches(
        branch(channels, (64, 1)),
        branch(channels, (48, 1), (64, 5)),
        branch(channels, (64, 1), (96, 3), (96, 3)),
        pooled_branch(channels, pooled),
    )


def first_reduction(channels: int) -> Branches:
    """Return the first module that halves the size (figure 10)."""
    double = halving(channels, 96, (64, 1), (96, 3))
    return Branches(halving(channels, 384), double, nn.MaxPool2d(3, stride=2))


def sevens(channels: int, width: int) -> Branches:
    """Return the module with convolutions of 1 x 7 and 7 x 1 (figure 6)."""
    row, column = (1, 7), (7, 1)
    return Branches(
        branch(channels, (192, 1)),
        branch(channels, (width, 1), (width, row), (192, column)),
        branch(channels, (width, 1), (width, column), (width, row), (width, column), (192, row)),
        pooled_branch(channels, 192),
    )


def second_reduction(channels: int) -> Branches:
    """Return the second module that halves the size."""
    return Branches(
        halving(channels, 320, (192, 1)),
        halving(channels, 192, (192, 1), (192, (1, 7)), (192, (7, 1))),
        nn.MaxPool2d(3, stride=2),
    )


def spread(channels: int) -> Branches:
    """Return the module whose branches fork again at their end (figure 7)."""

    def fork(width: int) -> Branches:
        return Branches(branch(width, (384, (1, 3))), branch(width, (384, (3, 1))))

    return Branches(
        branch(channels, (320, 1)),
        nn.Sequential(*chain(channels, (384, 1)), fork(384)),
        nn.Sequential(*chain(channels, (448, 1), (384, 3)), fork(384)),
        pooled_branch(channels, 192),
    )
