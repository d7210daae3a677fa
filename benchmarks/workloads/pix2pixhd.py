"""Pictures from label maps by a conditional GAN: two networks, three passes of one of them, one step.

Wang et al. 2018, "High-Resolution Image Synthesis and Semantic Manipulation with Conditional GANs"
(https://arxiv.org/abs/1711.11585): the global generator (four halvings, nine residual blocks), discriminators
at several scales, least-squares and feature-matching losses, label maps of Cityscapes (35 classes and the edges
of instances). Departures: the perceptual loss of a second, fixed network is left out. One optimizer holds both
networks and makes one step after both backward passes. Instance normalization is written as group
normalization with one channel a group, which computes the same and keeps channels-last.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import adam, channels_last, pictures, precision

from outgrow import Workload

LABELS = 36
GENERATOR_WIDTH = 64
HALVINGS = 4
RESIDUAL_BLOCKS = 9
DISCRIMINATOR_WIDTHS = (64, 128, 256, 512)
MATCHING = 10.0


def pix2pixhd(*, batch: int = 1, size: int = 512, scales: int = 2, dtype: str = "float32") -> Workload:
    """Return the training of generator and discriminators on `batch` pictures of `size` x `2 size`.

    `scales` is the number of discriminators, each on pictures of half the size. Raises `ValueError` unless the
    size is a multiple of 16.
    """
    if size <= 0 or size % 2**HALVINGS:
        raise ValueError(f"size {size} is not a positive multiple of 16: the generator halves it {HALVINGS} times.")
    torch.manual_seed(0)
    autocast = precision(dtype)
    generator, discriminator = channels_last(network()), channels_last(Discriminator(scales))
    model = nn.ModuleList([generator, discriminator])
    optimizer = adam(model, lr=2e-4)

    def step(labels: Tensor, real: Tensor) -> Tensor:
        with autocast():
            made = generator(labels)
            judged, features = discriminator(labels, made)
            truth, real_features = discriminator(labels, real)
            matching = sum_of(F.l1_loss(a, b.detach()) for a, b in zip(features, real_features, strict=True))
            persuasion = sum_of(squared(score, 1.0) for score in judged) + MATCHING * matching / scales
            caught, _ = discriminator(labels, made.detach())
            judgement = sum_of(squared(a, 0.0) + squared(b, 1.0) for a, b in zip(caught, truth, strict=True)) / 2
        persuasion.backward(inputs=list(generator.parameters()))
        judgement.backward(inputs=list(discriminator.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        return persuasion

    labels, real = pictures(batch, LABELS, size, 2 * size), pictures(batch, 3, size, 2 * size)
    return Workload(model, optimizer, step, [(labels, real)])


def sum_of(losses: Iterable[Tensor]) -> Tensor:
    """Return the sum of several losses."""
    return torch.stack(list(losses)).sum()


def squared(scores: Tensor, wanted: float) -> Tensor:
    """Return the mean squared distance of the scores from what is wanted."""
    return (scores - wanted).square().mean()


def network() -> nn.Sequential:
    """Return the global generator: pictures (N, 3, H, W) of label maps (N, 36, H, W)."""
    width = GENERATOR_WIDTH
    layers: list[nn.Module] = [nn.ReflectionPad2d(3), *normed(nn.Conv2d(LABELS, width, 7), width)]
    for _ in range(HALVINGS):
        layers += normed(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), 2 * width)
        width *= 2
    layers += [Residual(width) for _ in range(RESIDUAL_BLOCKS)]
    for _ in range(HALVINGS):
        grow = nn.ConvTranspose2d(width, width // 2, 3, stride=2, padding=1, output_padding=1)
        layers += normed(grow, width // 2)
        width //= 2
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


def normed(convolution: nn.Module, width: int) -> list[nn.Module]:
    """Return the convolution, instance normalization, relu."""
    return [convolution, nn.GroupNorm(width, width, affine=False), nn.ReLU()]


class Residual(nn.Module):
    """x + f(x), f being two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        *first, relu = normed(nn.Conv2d(width, width, 3), width)
        *second, _ = normed(nn.Conv2d(width, width, 3), width)
        self.residual = nn.Sequential(nn.ReflectionPad2d(1), *first, relu, nn.ReflectionPad2d(1), *second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x)


class Discriminator(nn.Module):
    """Scores of patches, and the features before them, at every scale."""

    def __init__(self, scales: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(patches() for _ in range(scales))

    def forward(self, labels: Tensor, picture: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        x = torch.cat([labels, picture], dim=1)
        scores: list[Tensor] = []
        features: list[Tensor] = []
        for at, layers in enumerate(self.scales):
            y = x = F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False) if at else x
            *before, last = layers.children()
            for layer in before:
                y = layer(y)
                features.append(y)
            scores.append(last(y))
        return scores, features


def patches() -> nn.Sequential:
    """Return a discriminator of patches: three halvings, then a score at each place."""
    layers: list[nn.Module] = []
    channels = LABELS + 3
    for at, width in enumerate(DISCRIMINATOR_WIDTHS):
        is_last = at == len(DISCRIMINATOR_WIDTHS) - 1
        convolution = nn.Conv2d(channels, width, 4, stride=1 if is_last else 2, padding=2)
        norm = (nn.GroupNorm(width, width, affine=False),) if at else ()
        layers.append(nn.Sequential(convolution, *norm, nn.LeakyReLU(0.2)))
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, padding=2))
