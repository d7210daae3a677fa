"""Small models that together use every family of operators, with sizes that few numbers divide.

They are for looking at results, not at seconds: what one device computes is compared with what several do. No tensor is
without influence on the loss, since a gradient that is zero but for rounding would be compared as if it were one.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from outgrow import Workload


def perceptron(*, batch: int = 22, dtype: str = "float64") -> Workload:
    """Products, layer norm, dropout, and the loss of classes, with label smoothing."""
    torch.manual_seed(0)
    layers = [nn.Linear(13, 37), nn.GELU(), nn.LayerNorm(37), nn.Dropout(0.2), nn.Linear(37, 24), nn.Tanh()]
    model = _made(nn.Sequential(*layers, nn.Linear(24, 10)), dtype)
    x, classes = torch.randn(batch, 13), torch.randint(10, (batch,))

    def loss(x: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(model(x), classes, label_smoothing=0.1)

    return _trained(model, AdamW(model.parameters(), lr=1e-2), loss, (x, classes), dtype)


def image(*, batch: int = 10, dtype: str = "float64") -> Workload:
    """Convolutions with stride, dilation, groups and transposed; batch and group norm; pools; parts put together."""
    torch.manual_seed(0)
    model = _made(_Image(), dtype)
    x, classes = torch.randn(batch, 3, 18, 14), torch.randint(7, (batch,))
    optimizer = SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    return _trained(model, optimizer, lambda x, y: F.cross_entropy(model(x), y), (x, classes), dtype)


class _Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.grouped = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=3)
        self.groups = nn.GroupNorm(3, 12)
        self.down = nn.Conv2d(24, 10, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(10, 6, 4, stride=2, padding=1)
        self.head = nn.Linear(6, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        beside = F.silu(self.groups(self.grouped(x)))
        x = self.down(torch.cat((x, F.dropout2d(beside, 0.1)), dim=1))
        x = F.avg_pool2d(F.max_pool2d(self.up(x), 2), 3, stride=2, padding=1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def volume(*, batch: int = 4, dtype: str = "float64") -> Workload:
    """Convolutions in three dimensions, down and up again, and the loss of each voxel."""
    torch.manual_seed(0)
    down, middle = nn.Conv3d(2, 8, 3, stride=2, padding=1), nn.Conv3d(8, 8, 3, padding=1)
    up = nn.ConvTranspose3d(8, 4, 2, stride=2)
    layers = [down, nn.Softplus(), middle, nn.GroupNorm(2, 8), nn.ELU(), up, nn.Hardswish(), nn.Conv3d(4, 1, 1)]
    model = _made(nn.Sequential(*layers), dtype)
    x, inside = torch.randn(batch, 2, 8, 6, 10), torch.rand(batch, 1, 8, 6, 10)

    def loss(x: Tensor, inside: Tensor) -> Tensor:
        return F.binary_cross_entropy(torch.sigmoid(model(x)), inside)

    return _trained(model, RMSprop(model.parameters(), lr=1e-3, momentum=0.5), loss, (x, inside), dtype)


def text(*, batch: int = 6, length: int = 9, dtype: str = "float64") -> Workload:
    """Embeddings, attention with a causal mask, layer norm, tied weights, gradients clipped by their norm."""
    torch.manual_seed(0)
    model = _Text(length)
    _made(model, dtype)
    words = torch.randint(29, (batch, length + 1))
    optimizer = Adam(model.parameters(), lr=1e-2)

    def loss(words: Tensor, following: Tensor) -> Tensor:
        found = F.cross_entropy(model(words).flatten(0, 1), following.flatten())
        return found + 1e-3 * model.words.weight.square().mean()

    return _trained(model, optimizer, loss, (words[:, :-1].clone(), words[:, 1:].clone()), dtype, clipped=1.0)


class _Text(nn.Module):
    def __init__(self, length: int, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.words: nn.Embedding = nn.Embedding(29, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.say = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.read(self.norm(x)).chunk(3, 2))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.say(seen.transpose(1, 2).flatten(2)), 0.1, self.training)
        return self.last(x) @ self.words.weight.t()


def series(*, batch: int = 7, length: int = 11, dtype: str = "float64") -> Workload:
    """A convolution in one dimension, a recurrence written out, extremes and means, and errors that are compared."""
    torch.manual_seed(0)
    model = _made(_Series(), dtype)
    x, expected = torch.randn(batch, 3, length), torch.randn(batch, 5)

    def loss(x: Tensor, expected: Tensor) -> Tensor:
        return F.mse_loss(model(x), expected) + 0.1 * F.huber_loss(model(x), expected, reduction="sum")

    return _trained(model, Adam(model.parameters(), lr=1e-2, amsgrad=True), loss, (x, expected), dtype)


class _Series(nn.Module):
    def __init__(self, units: int = 14) -> None:
        super().__init__()
        self.units = units
        self.window = nn.Conv1d(3, 8, 3, stride=2)
        self.gates, self.head = nn.Linear(8 + units, 3 * units), nn.Linear(2 * units, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], self.units)
        states: list[Tensor] = []
        for now in self.window(x).unbind(2):
            keep, write, value = self.gates(torch.cat((now, state), 1)).split(self.units, 1)
            state = torch.sigmoid(keep) * state + torch.sigmoid(write) * torch.tanh(value)
            states.append(state)
        seen = torch.stack(states, 1)
        return self.head(torch.cat((seen.amax(1), seen.mean(1)), 1))


def _made(model: nn.Module, dtype: str) -> nn.Module:
    return model.to(vars(torch)[dtype])


def _trained(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[..., Tensor],
    batch: tuple[Tensor, ...],
    dtype: str,
    clipped: float | None = None,
) -> Workload:
    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        found = loss(*batch)
        found.backward()
        if clipped is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clipped)
        optimizer.step()
        return found

    cast = tuple(item.to(vars(torch)[dtype]) if item.is_floating_point() else item for item in batch)
    return Workload(model, optimizer, step, [cast])
