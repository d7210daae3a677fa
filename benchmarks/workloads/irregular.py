"""Cells whose wiring follows no pattern: small graphs in which the order of the operators decides the memory.

These are the families on which Ahn et al. 2020, "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired
Neural Networks for Edge Devices" (MLSys, https://arxiv.org/abs/2003.02369) compares orders.

    darts      the normal cell that Liu et al. 2019, "DARTS: Differentiable Architecture Search"
               (https://arxiv.org/abs/1806.09055) found (its second-order result, DARTS_V2)
    randwire   a random graph of Watts and Strogatz, as in Xie et al. 2019, "Exploring Randomly Wired Neural
               Networks for Image Recognition" (https://arxiv.org/abs/1904.01569)
    swiftnet   cells in the manner of Cheng et al. 2019, "SwiftNet: Using Graph Propagation as Meta-Knowledge to
               Search Highly Representative Neural Architectures" (https://arxiv.org/abs/1906.08305): 1 x 1 and
               depthwise convolutions and concatenations. The wiring that was searched is not repeated: ours is
               drawn, with as many nodes (21, 19 and 22)

All wiring is drawn from `seed` by a generator of its own, when the workload is built. With `inference` the step is the
forward pass alone, which is what that paper orders.
"""

import random
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import channels_last, minimised, pictures, sgd

from outgrow import Workload

CLASSES = 10


def darts(
    *,
    batch: int = 64,
    size: int = 28,
    channels: int = 48,
    cells: int = 2,
    dtype: str = "float32",
    inference: bool = False,
) -> Workload:
    """Return the training of `cells` DARTS cells between a convolution and a linear layer."""
    torch.manual_seed(0)
    return _classifier(DartsNetwork(channels, cells), 4 * channels, batch, size, dtype, inference=inference)


def randwire(
    *,
    batch: int = 64,
    size: int = 28,
    channels: int = 78,
    nodes: int = 32,
    seed: int = 0,
    dtype: str = "float32",
    inference: bool = False,
) -> Workload:
    """Return the training of one randomly wired stage of `nodes` nodes, each joined to four others."""
    torch.manual_seed(0)
    wiring = small_world(nodes, neighbours=4, rewired=0.75, seed=seed)
    body = nn.Sequential(_normed(3, channels, 3), RandomlyWired(wiring, channels))
    return _classifier(body, channels, batch, size, dtype, inference=inference)


def swiftnet(
    *,
    batch: int = 64,
    size: int = 56,
    channels: int = 16,
    seed: int = 0,
    dtype: str = "float32",
    inference: bool = False,
) -> Workload:
    """Return the training of three cells of 21, 19 and 22 nodes with drawn wiring."""
    torch.manual_seed(0)
    drawn = random.Random(seed)
    body: list[nn.Module] = [_normed(3, channels, 3)]
    width = channels
    for nodes in (21, 19, 22):
        cell = SwiftCell(width, channels, nodes, drawn)
        body += [cell, nn.MaxPool2d(2)]
        width = cell.channels_out
    return _classifier(nn.Sequential(*body), width, batch, size, dtype, inference=inference)


def _classifier(body: nn.Module, channels: int, batch: int, size: int, dtype: str, *, inference: bool) -> Workload:
    model = channels_last(nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)))
    x, y = pictures(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    if inference:
        return Workload(model.eval(), sgd(model), torch.no_grad()(model.forward), [(x,)])
    return minimised(model, sgd(model), lambda x, y: F.cross_entropy(model(x), y), (x, y), dtype)


def _normed(channels_in: int, channels_out: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(channels_in, channels_out, kernel, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))


def _separable(channels: int, dilation: int = 1) -> nn.Sequential:
    """Relu, a 3 x 3 convolution of each channel by itself, a 1 x 1 convolution, batch normalization."""
    depthwise = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation, groups=channels, bias=False)
    return nn.Sequential(nn.ReLU(), depthwise, *_normed(channels, channels, 1))


# DARTS ------------------------------------------------------------------------------------------------------------

SEPARABLE, SKIP, DILATED = "separable", "skip", "dilated"
NORMAL_CELL = (
    ((SEPARABLE, 0), (SEPARABLE, 1)),
    ((SEPARABLE, 0), (SEPARABLE, 1)),
    ((SEPARABLE, 1), (SKIP, 0)),
    ((SKIP, 0), (DILATED, 2)),
)
"""For each node its two operators, and what they read: 0 and 1 are the two cells before, 2 the first node."""


class DartsNetwork(nn.Module):
    """Cells one after the other, each of which reads the two before it."""

    def __init__(self, channels: int, cells: int) -> None:
        super().__init__()
        self.stem = _normed(3, channels, 3)
        widths = pairwise([channels, channels, *[4 * channels] * (cells - 1)])
        self.cells = nn.ModuleList(DartsCell(before, last, channels) for before, last in widths)

    def forward(self, x: Tensor) -> Tensor:
        before = last = self.stem(x)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return last


class DartsCell(nn.Module):
    """Four nodes, each the sum of two operators, concatenated."""

    def __init__(self, channels_before: int, channels_last: int, channels: int) -> None:
        super().__init__()
        self.entries = nn.ModuleList(
            nn.Sequential(nn.ReLU(), _normed(width, channels, 1)) for width in (channels_before, channels_last)
        )
        self.operators = nn.ModuleList(_darts_operator(kind, channels) for node in NORMAL_CELL for kind, _ in node)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        known = [entry(x) for entry, x in zip(self.entries, (before, last), strict=True)]
        operators = iter(self.operators)
        for node in NORMAL_CELL:
            first, second = (next(operators)(known[at]) for _, at in node)
            known.append(first + second)
        return torch.cat(known[2:], dim=1)


def _darts_operator(kind: str, channels: int) -> nn.Module:
    if kind == SKIP:
        return nn.Identity()
    if kind == DILATED:
        return _separable(channels, dilation=2)
    return nn.Sequential(*_separable(channels), *_separable(channels))


# Randomly wired stages --------------------------------------------------------------------------------------------


def small_world(nodes: int, neighbours: int, rewired: float, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each node, the earlier nodes that it reads: a graph of Watts and Strogatz, edges forward.

    Nodes stand in a ring, each joined to its `neighbours` nearest; the far end of an edge is moved to a drawn
    node with probability `rewired`. Nodes that read nothing read the input of the stage.

    >>> small_world(5, neighbours=2, rewired=0.0, seed=0)
    ((), (0,), (1,), (2,), (0, 3))
    """
    drawn = random.Random(seed)
    edges = {(at, (at + step) % nodes) for step in range(1, neighbours // 2 + 1) for at in range(nodes)}
    for step in range(1, neighbours // 2 + 1):
        for at in range(nodes):
            free = [end for end in range(nodes) if end != at and not {(at, end), (end, at)} & edges]
            if drawn.random() < rewired and free:
                edges.remove((at, (at + step) % nodes))
                edges.add((at, drawn.choice(free)))
    ordered = sorted((min(edge), max(edge)) for edge in edges)
    return tuple(tuple(start for start, end in ordered if end == at) for at in range(nodes))


class RandomlyWired(nn.Module):
    """Each node reads a weighted sum of others; those that nobody reads are averaged."""

    def __init__(self, wiring: Sequence[Sequence[int]], channels: int) -> None:
        super().__init__()
        self.wiring = [tuple(sources) for sources in wiring]
        self.nodes = nn.ModuleList(_separable(channels) for _ in wiring)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(len(sources))) for sources in wiring if len(sources) > 1
        )

    def forward(self, x: Tensor) -> Tensor:
        known: list[Tensor] = []
        weights = iter(self.weights)
        for node, sources in zip(self.nodes, self.wiring, strict=True):
            if len(sources) > 1:
                shares = torch.sigmoid(next(weights)).unbind()
                parts = [known[at] * share for at, share in zip(sources, shares, strict=True)]
                known.append(node(_sum(parts)))
            else:
                known.append(node(known[sources[0]] if sources else x))
        read = {at for sources in self.wiring for at in sources}
        ends = [result for at, result in enumerate(known) if at not in read]
        return _sum(ends) / len(ends)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# SwiftNet-like cells ----------------------------------------------------------------------------------------------


class SwiftCell(nn.Module):
    """Nodes that are a depthwise convolution, a 1 x 1 convolution, or a concatenation, on drawn earlier nodes."""

    def __init__(self, channels_in: int, channels: int, nodes: int, drawn: random.Random) -> None:
        super().__init__()
        widths = [channels_in]
        self.sources: list[tuple[int, ...]] = []
        self.nodes = nn.ModuleList()
        for _ in range(nodes - 1):
            kind = drawn.choice(("depthwise", "pointwise", "concatenation"))
            count = min(len(widths), 2 if kind == "concatenation" else 1)
            sources = tuple(sorted(drawn.sample(range(len(widths)), count)))
            width = sum(widths[at] for at in sources)
            self.sources.append(sources)
            widths.append(channels if kind == "pointwise" else width)
            self.nodes.append(_swift_operator(kind, width, widths[-1]))
        read = {at for sources in self.sources for at in sources}
        self.ends = tuple(at for at in range(len(widths)) if at not in read)
        self.project = _normed(sum(widths[at] for at in self.ends), 2 * channels, 1)
        self.channels_out = 2 * channels

    def forward(self, x: Tensor) -> Tensor:
        known = [x]
        for node, sources in zip(self.nodes, self.sources, strict=True):
            known.append(node(_joined([known[at] for at in sources])))
        return self.project(_joined([known[at] for at in self.ends]))


def _swift_operator(kind: str, channels_in: int, channels_out: int) -> nn.Module:
    if kind == "depthwise":
        convolution = nn.Conv2d(channels_in, channels_in, 3, padding=1, groups=channels_in, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(channels_in))
    if kind == "pointwise":
        return nn.Sequential(nn.ReLU(), _normed(channels_in, channels_out, 1))
    return nn.Identity()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), dim=1) if len(parts) > 1 else parts[0]
