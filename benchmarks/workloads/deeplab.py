"""Semantic segmentation with a dilated residual network: large pictures, results as large as they.

Chen et al. 2018, "Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation"
(https://arxiv.org/abs/1802.02611), DeepLabv3+ with its ResNet-101 encoder at an output stride of 16. Departures:
the last stage of the encoder is dilated by 2 throughout, and the decoder's convolutions are separable as the
paper proposes, those of the pyramid not, as in its ResNet rows.
"""

import torch
from resnet import BLOCKS, EXPANSION, STEM, normed, stages, stem
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import channels_last, minimised, pictures, sgd

from outgrow import Workload

CLASSES = 21
IGNORED = 255
WIDTH = 256
LOW_LEVEL = 48
RATES = (6, 12, 18)


def deeplab_v3_plus(*, batch: int = 4, size: int = 513, dtype: str = "float32") -> Workload:
    """Return the training of a DeepLabv3+ on `batch` pictures of `size` x `size`."""
    torch.manual_seed(0)
    model = channels_last(DeepLab())
    x, y = pictures(batch, 3, size, size), torch.randint(CLASSES, (batch, size, size))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, ignore_index=IGNORED)

    return minimised(model, sgd(model, lr=0.007), loss, (x, y), dtype)


class DeepLab(nn.Module):
    """Logits (N, 21, H, W) of pictures (N, 3, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stages = stem(), stages(BLOCKS[101], dilation=2)
        self.pyramid = Pyramid(EXPANSION * STEM * 8)
        self.low_level = convolved(EXPANSION * STEM, LOW_LEVEL, 1)
        self.decoder = nn.Sequential(*separable(WIDTH + LOW_LEVEL), *separable(WIDTH), nn.Conv2d(WIDTH, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        sides = x.shape[2:]
        first, *later = self.stages
        x = low = first(self.stem(x))
        for stage in later:
            x = stage(x)
        low = self.low_level(low)
        x = torch.cat([enlarged(self.pyramid(x), low.shape[2:]), low], dim=1)
        return enlarged(self.decoder(x), sides)


class Pyramid(nn.Module):
    """Atrous spatial pyramid pooling: convolutions of several rates and the mean, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        rated = (convolved(channels, WIDTH, 3, dilation=rate) for rate in RATES)
        self.branches = nn.ModuleList([convolved(channels, WIDTH, 1), *rated])
        self.mean = nn.Sequential(nn.Conv2d(channels, WIDTH, 1), nn.ReLU())  # one place: nothing to normalize over
        self.project = convolved(WIDTH * (len(RATES) + 2), WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x.mean(dim=(2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return self.project(torch.cat([*(branch(x) for branch in self.branches), mean], dim=1))


def convolved(channels_in: int, channels_out: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    """Return convolution, batch normalization, relu."""
    return nn.Sequential(*normed(channels_in, channels_out, kernel, dilation=dilation), nn.ReLU())


def separable(channels: int) -> list[nn.Module]:
    """Return a 3 x 3 convolution of each channel by itself, then a 1 x 1 convolution to 256 channels."""
    depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return [depthwise, nn.BatchNorm2d(channels), nn.ReLU(), *normed(channels, WIDTH, 1), nn.ReLU()]


def enlarged(x: Tensor, sides: torch.Size) -> Tensor:
    """Return `x` interpolated bilinearly to these sides."""
    return F.interpolate(x, size=tuple(sides), mode="bilinear", align_corners=False)
