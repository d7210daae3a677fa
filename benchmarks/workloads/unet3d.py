"""A 3D U-Net on volumes: few operators, and single tensors that fill a device.

Cicek et al. 2016, "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation"
(https://arxiv.org/abs/1606.06650): four levels, 32 to 512 channels, batch normalization. Four modalities and
three labels are those of BraTS, the data on which Le et al. 2019, "Automatic GPU memory management for large
neural models in TensorFlow" (ISMM), train volumes of 192^3. Departures: convolutions keep the size, and the
loss is the cross-entropy over all voxels.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import adam, channels_last, minimised, pictures

from outgrow import Workload

LEVELS = 4


def unet3d(
    *,
    size: int = 144,
    batch: int = 1,
    channels: int = 32,
    modalities: int = 4,
    classes: int = 3,
    dtype: str = "float32",
) -> Workload:
    """Return the training of a 3D U-Net on `batch` volumes of `size`^3 with Adam.

    `channels` is the width of the first convolution. Raises `ValueError` unless the size is a multiple of 8.
    """
    coarsest = 2 ** (LEVELS - 1)
    if size <= 0 or size % coarsest:
        raise ValueError(f"size {size} is not a positive multiple of {coarsest}: the U-Net halves it three times.")
    torch.manual_seed(0)
    model = channels_last(UNet3d(channels, modalities, classes))
    x, y = pictures(batch, modalities, size, size, size), torch.randint(classes, (batch, size, size, size))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits = model(x).permute(0, 2, 3, 4, 1)
        return F.cross_entropy(logits.reshape(-1, classes), y.reshape(-1))

    return minimised(model, adam(model), loss, (x, y), dtype)


class UNet3d(nn.Module):
    """Logits (N, classes, D, H, W) of volumes (N, modalities, D, H, W)."""

    def __init__(self, channels: int, modalities: int, classes: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(LEVELS)]
        entries = [modalities, *(2 * width for width in widths)]
        self.encoders = nn.ModuleList(
            two(entry, w, 2 * w) for (entry, _), w in zip(pairwise(entries), widths, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose3d(4 * w, 4 * w, 2, stride=2, bias=False) for w in widths[:-1])
        self.decoders = nn.ModuleList(two(2 * w + 4 * w, 2 * w, 2 * w) for w in widths[:-1])
        self.head = nn.Conv3d(2 * channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, encoder in enumerate(self.encoders):
            x = encoder(F.max_pool3d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, decoder in zip(reversed(self.up), reversed(self.decoders), strict=True):
            x = decoder(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def two(channels_in: int, between: int, channels_out: int) -> nn.Sequential:
    """Return, twice: convolution, batch normalization, relu."""
    layers: list[nn.Module] = []
    for entry, width in ((channels_in, between), (between, channels_out)):
        convolution = nn.Conv3d(entry, width, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm3d(width), nn.ReLU()]
    return nn.Sequential(*layers)
