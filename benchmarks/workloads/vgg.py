"""VGG-16 on pictures: few large layers, most of the memory in the first of them.

Simonyan and Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image Recognition"
(https://arxiv.org/abs/1409.1556), configuration D: no normalization, three large linear layers with dropout.
"""

import torch
from torch import nn
from torch.nn import functional as F
from training_step import channels_last, minimised, pictures, sgd

from outgrow import Workload

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
CLASSES = 1000
HIDDEN = 4096


def vgg16(*, batch: int = 64, size: int = 224, dtype: str = "float32") -> Workload:
    """Return the training of a VGG-16 on `batch` pictures of `size` x `size`.

    Raises `ValueError` unless the size is a multiple of 32.
    """
    if size <= 0 or size % 2 ** len(STAGES):
        raise ValueError(f"size {size} is not a positive multiple of 32: VGG-16 halves it {len(STAGES)} times.")
    torch.manual_seed(0)
    model = channels_last(network(size))
    x, y = pictures(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    return minimised(model, sgd(model, lr=0.01), lambda x, y: F.cross_entropy(model(x), y), (x, y), dtype)


def network(size: int) -> nn.Sequential:
    """Return the network for pictures of this size: logits (N, 1000) of pictures (N, 3, size, size)."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in STAGES:
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    places = (size // 2 ** len(STAGES)) ** 2
    for width_in in (channels * places, HIDDEN):
        layers += [nn.Linear(width_in, HIDDEN), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))
