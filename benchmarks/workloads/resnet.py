"""Residual networks of bottleneck blocks on pictures, from 50 layers to 2000.

    outgrow plan benchmarks/workloads/resnet.py:resnet50 --set batch=256 --memory-budget 16GiB

He et al. 2016, "Deep Residual Learning for Image Recognition" (https://arxiv.org/abs/1512.03385), with the
stride of a block in its 3 x 3 convolution, as nearly all programs have it since (called v1.5).

    layers = 3 * blocks + 2         blocks are spread over four stages of 64, 128, 256, 512 (times 4) channels

50, 101 and 152 are that paper's; 200 is that of He et al. 2016, "Identity Mappings in Deep Residual Networks".
Nobody published the blocks of a ResNet-1001 or ResNet-2000 on pictures of ImageNet. Here they are ResNet-200
with more blocks in its third stage, as 101, 152 and 200 themselves grow. Weights, gradients and momentum then
take 4.6 and 9.1 GB, which agrees with the 6.0 and 10.7 GB to which Meng et al. 2017, "Training Deeper Models
by GPU Memory Optimization on TensorFlow", reduce networks of these depths at batch 32. The captured step of
ResNet-1202, built likewise, has about 20,000 ops.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import channels_last, minimised, pictures, sgd

from outgrow import Workload

BLOCKS = {
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    1001: (3, 24, 303, 3),
    1202: (3, 24, 370, 3),
    2000: (3, 24, 636, 3),
}
CLASSES = 1000
EXPANSION = 4
STEM = 64


def resnet50(*, batch: int = 64, size: int = 224, dtype: str = "float32") -> Workload:
    """Return the training of a ResNet-50 on `batch` pictures of `size` x `size`."""
    return resnet(depth=50, batch=batch, size=size, dtype=dtype)


def resnet(*, depth: int = 101, batch: int = 32, size: int = 224, dtype: str = "float32") -> Workload:
    """Return the training of a residual network of `depth` layers; raises `ValueError` for other depths."""
    if depth not in BLOCKS:
        raise ValueError(f"depth {depth} is unknown. Choose one of: {', '.join(map(str, BLOCKS))}.")
    torch.manual_seed(0)
    model = channels_last(ResNet(BLOCKS[depth]))
    x, y = pictures(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    return minimised(model, sgd(model), lambda x, y: F.cross_entropy(model(x), y), (x, y), dtype)


class ResNet(nn.Module):
    """Logits (N, 1000) of pictures (N, 3, H, W); the stages are `width` times as wide as is usual."""

    def __init__(self, blocks: tuple[int, ...], width: int = 1) -> None:
        super().__init__()
        self.stem, self.stages = stem(), stages(blocks, width=width)
        self.head = nn.Linear(EXPANSION * STEM * width * 2 ** (len(blocks) - 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean(dim=(2, 3)))


def stem() -> nn.Sequential:
    """Return what comes before the first stage: pictures to 64 channels, a quarter of the size."""
    return nn.Sequential(*normed(3, STEM, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))


def stages(blocks: tuple[int, ...], dilation: int = 1, width: int = 1) -> nn.ModuleList:
    """Return the stages; with a dilation, the last one is dilated by it instead of halving the size again."""
    widths = [STEM * width * 2**stage for stage in range(len(blocks))]
    entries = [STEM, *(EXPANSION * wide for wide in widths)]
    found = nn.ModuleList()
    for at, ((entry, _), wide, count) in enumerate(zip(pairwise(entries), widths, blocks, strict=True)):
        dilated = dilation if at == len(blocks) - 1 else 1
        stride = 1 if at == 0 or dilated > 1 else 2
        first = Bottleneck(entry, wide, stride, dilated)
        rest = (Bottleneck(EXPANSION * wide, wide, 1, dilated) for _ in range(count - 1))
        found.append(nn.Sequential(first, *rest))
    return found


class Bottleneck(nn.Module):
    """relu(x + f(x)), f being convolutions of 1 x 1, 3 x 3 and 1 x 1; x is projected where its shape changes."""

    def __init__(self, channels_in: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        channels_out = EXPANSION * width
        self.residual = nn.Sequential(
            *normed(channels_in, width, 1),
            nn.ReLU(),
            *normed(width, width, 3, stride=stride, dilation=dilation),
            nn.ReLU(),
            *normed(width, channels_out, 1),
        )
        changes = stride > 1 or channels_in != channels_out
        self.shortcut = nn.Sequential(*normed(channels_in, channels_out, 1, stride=stride) if changes else ())

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


def normed(channels_in: int, channels_out: int, kernel: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps the size, up to its stride, and its batch normalization."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(channels_in, channels_out, kernel, stride, padding, dilation, bias=False)
    return [convolution, nn.BatchNorm2d(channels_out)]
