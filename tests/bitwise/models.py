"""Which trainings have tensors large enough to move, and steps quick enough for a test?"""

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import brain_unet3d
from outgrow import Workload


def unet() -> Workload:
    """The U-Net of the examples on a small brain, with fewer levels."""
    with patch.object(brain_unet3d, "LEVELS", 2):
        return brain_unet3d.workload(size=52)


class Residual(nn.Module):
    """Two convolutions with batch norm around a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(inner)) + x)


def resnet() -> Workload:
    """Residual blocks with batch norm, max pooling, SGD with momentum, and two batches."""
    torch.manual_seed(0)
    blocks = (Residual(32) for _ in range(4))
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.MaxPool2d(2),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    ).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return _classifier(model, optimizer, lambda: (torch.randn(48, 3, 64, 64), torch.randint(0, 5, (48,))))


class Volume(nn.Module):
    """A flat image seen as the first of some layers of a volume."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, 4)).contiguous()


def pooled() -> Workload:
    """Convolutions and all kinds of pooling, first in two dimensions, then in three."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1, groups=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        Volume(),
        nn.Conv3d(8, 24, 3, padding=1, bias=False),
        nn.GELU(),
        nn.MaxPool3d(2),
        nn.Conv3d(24, 16, 1),
        nn.AdaptiveMaxPool3d(3),
        nn.Flatten(),
        nn.Linear(432, 5),
    )
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    return _classifier(model, optimizer, lambda: (torch.randn(32, 3, 96, 96), torch.randint(0, 5, (32,))))


def transformer() -> Workload:
    """An encoder with dropout, whose generator state has to follow eager's, and clipped gradients."""
    torch.manual_seed(0)
    layers = (nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True) for _ in range(2))
    model = nn.Sequential(nn.Embedding(50, 128), *layers, nn.Linear(128, 50))
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    texts = [torch.randint(0, 50, (24, 129)) for _ in range(2)]
    return Workload(model, optimizer, step, [(text[:, :-1], text[:, 1:]) for text in texts])


def _classifier(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[], tuple[Tensor, Tensor]]
) -> Workload:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Workload(model, optimizer, step, [batch(), batch()])


MODELS = (unet, resnet, pooled, transformer)
