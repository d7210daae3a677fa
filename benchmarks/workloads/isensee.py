"""The 3D U-Net with which the authors of TFLMS measured: residual context modules, and norms written out.

Isensee et al. 2018, "Brain Tumor Segmentation and Radiomics Survival Prediction: Contribution to the BRATS 2017
Challenge" (https://arxiv.org/abs/1802.10508), in the form of a program of that time
(github.com/ellisdg/3DUnetCNN, unet3d/model/isensee2017.py), which the maintainers of TFLMS name as theirs
(github.com/IBM/tensorflow-large-model-support, issue 30): five levels of 16 to 256 channels, four modalities,
three labels, Dice loss, Adam.

With `norm` "written" an instance normalization is what it was there, a row of elementwise operators each of
which keeps its operand for the backward pass; with "fused" it is one operator that keeps its input.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import adam, channels_last, known, minimised, pictures

from outgrow import Workload

LEVELS = 5
SEGMENTED = 3
"""Levels of which a segmentation is read; they are added up."""


def isensee(
    *,
    size: int = 128,
    batch: int = 1,
    channels: int = 16,
    modalities: int = 4,
    classes: int = 3,
    norm: str = "written",
    dtype: str = "float32",
) -> Workload:
    """Return the training of the network on `batch` volumes of `size`^3 with Adam.

    `channels` is the width of the first level. Raises `ValueError` unless the size is a multiple of 16, and for a
    `norm` that is neither "written" nor "fused".
    """
    coarsest = 2 ** (LEVELS - 1)
    if size <= 0 or size % coarsest:
        raise ValueError(f"size {size} is not a positive multiple of {coarsest}: the network halves it four times.")
    known("norm", norm, tuple(NORMS))
    torch.manual_seed(0)
    model = channels_last(Network(channels, modalities, classes, NORMS[norm]))
    x = pictures(batch, modalities, size, size, size)
    y = torch.randint(2, (batch, classes, size, size, size)).float()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        found = torch.sigmoid(model(x))
        both = (found * y).sum(dim=(2, 3, 4))
        either = found.sum(dim=(2, 3, 4)) + y.sum(dim=(2, 3, 4))
        return 1 - (2 * both / (either + 1e-5)).mean()

    return minimised(model, adam(model, lr=5e-4), loss, (x, y), dtype)


class WrittenNorm(nn.Module):
    """Instance normalization, operator by operator: (x - mean) / (deviation + epsilon) * scale + shift."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        places = (2, 3, 4)
        deviation = (x - x.mean(places, keepdim=True)).square().mean(places, keepdim=True).sqrt()
        return (x - x.mean(places, keepdim=True)) / (deviation + 1e-3) * self.scale + self.shift


def fused_norm(channels: int) -> nn.Module:
    """Return group normalization with one channel a group: instance normalization that keeps channels-last."""
    return nn.GroupNorm(channels, channels)


Norm = Callable[[int], nn.Module]
NORMS: dict[str, Norm] = {"written": WrittenNorm, "fused": fused_norm}


class Network(nn.Module):
    """Logits (N, classes, D, H, W) of volumes (N, modalities, D, H, W)."""

    def __init__(self, channels: int, modalities: int, classes: int, norm: Norm) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(LEVELS)]
        entries = zip([modalities, *widths], widths, strict=False)
        self.encoders = nn.ModuleList(Encoder(entry, w, 2 if at else 1, norm) for at, (entry, w) in enumerate(entries))
        self.up = nn.ModuleList(block(2 * w, w, 3, norm) for w in widths[:-1])
        self.decoders = nn.ModuleList(
            nn.Sequential(block(2 * w, w, 3, norm), block(w, w, 1, norm)) for w in widths[:-1]
        )
        self.heads = nn.ModuleList(nn.Conv3d(w, classes, 1) for w in widths[:SEGMENTED])

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for encoder in self.encoders:
            x = encoder(x)
            skips.append(x)
        skips.pop()
        found: Tensor | None = None
        for level in reversed(range(LEVELS - 1)):
            x = self.decoders[level](torch.cat([skips.pop(), self.up[level](doubled(x))], dim=1))
            if level < SEGMENTED:
                head = self.heads[level](x)
                found = head if found is None else doubled(found) + head
        assert found is not None, "some level is segmented"
        return found


class Encoder(nn.Module):
    """x + f(x) for x = a convolution of the level above, f being two convolutions with dropout between them."""

    def __init__(self, channels_in: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.entry = block(channels_in, width, 3, norm, stride)
        self.context = nn.Sequential(block(width, width, 3, norm), nn.Dropout3d(0.3), block(width, width, 3, norm))

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        return x + self.context(x)


def block(channels_in: int, channels_out: int, kernel: int, norm: Norm, stride: int = 1) -> nn.Sequential:
    """Return convolution, normalization, leaky relu."""
    convolution = nn.Conv3d(channels_in, channels_out, kernel, stride, kernel // 2)
    return nn.Sequential(convolution, norm(channels_out), nn.LeakyReLU(0.3))


def doubled(x: Tensor) -> Tensor:
    """Return each voxel eight times: twice the size on every side."""
    return F.interpolate(x, scale_factor=2.0)
