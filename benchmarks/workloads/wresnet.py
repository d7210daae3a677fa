"""Wide residual networks: a ResNet of which all channels are `width` times as many.

Zagoruyko and Komodakis 2016, "Wide Residual Networks" (https://arxiv.org/abs/1605.07146). Depths of 50, 101 and 152
and widths of 4 to 10 are those of M. Wang, C. Huang, J. Li, "Supporting Very Large Models using Automatic Dataflow
Graph Partitioning", EuroSys 2019, section 7. There the optimizer keeps one tensor beside each weight and its gradient.
"""

import torch
from resnet import BLOCKS, CLASSES, ResNet
from torch.nn import functional as F
from training_step import channels_last, minimised, pictures, sgd

from outgrow import Workload


def wresnet(*, depth: int = 152, width: int = 10, batch: int = 8, size: int = 224, dtype: str = "float32") -> Workload:
    """Return the training of a wide residual network; raises `ValueError` for other depths than a ResNet has."""
    if depth not in BLOCKS:
        raise ValueError(f"depth {depth} is unknown. Choose one of: {', '.join(map(str, BLOCKS))}.")
    torch.manual_seed(0)
    model = channels_last(ResNet(BLOCKS[depth], width))
    x, y = pictures(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    return minimised(model, sgd(model), lambda x, y: F.cross_entropy(model(x), y), (x, y), dtype)
