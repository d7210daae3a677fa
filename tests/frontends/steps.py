"""Which training steps does a capture have to get right? One function for each, all small and seeded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer


@dataclass(frozen=True)
class Job:
    """A step with what it trains, and a maker of batches."""

    step: Callable[..., object]
    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    batch: Callable[[], tuple[Any, ...]]


def _classes() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 8), torch.randint(0, 3, (4,))


def mlp(make_optimizer: Callable[..., Optimizer], **options: object) -> Job:
    """A perceptron with batch norm, activations in place and dropout; gradients are cleared at the end."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 3))
    optimizer = make_optimizer(model.parameters(), **options)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), _classes)


def adam() -> Job:
    return mlp(Adam, lr=1e-2)


def adamw() -> Job:
    return mlp(AdamW, lr=1e-2, betas=(0.8, 0.95))


def adam_foreach() -> Job:
    return mlp(Adam, lr=1e-2, foreach=True, amsgrad=True)


def adam_with_a_tensor_rate() -> Job:
    return mlp(Adam, lr=torch.tensor(1e-2), foreach=False)


def sgd() -> Job:
    return mlp(SGD, lr=1e-2, momentum=0.9, weight_decay=1e-3, nesterov=True)


def trained(model: nn.Module, optimizer: Optimizer, batch: Callable[[], tuple[Any, ...]]) -> Job:
    """The step that most loops have. Gradients are cleared first, so they stay in `p.grad` after the step."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), batch)


def gradients_cleared_first() -> Job:
    """Gradients stay in `p.grad` after the step."""
    model = nn.Linear(8, 3)
    return trained(model, SGD(model.parameters(), lr=0.1), _classes)


def gradients_accumulated() -> Job:
    """A step that only adds to the gradients."""
    model = nn.Linear(8, 3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return Job(step, (model,), (), _classes)


def volumes() -> Job:
    """Convolutions in three dimensions, channels last."""
    model = nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.BatchNorm3d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 2, 1),
    ).to(memory_format=torch.channels_last_3d)  # pyright: ignore[reportCallIssue]
    optimizer = AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> dict[str, object]:
        optimizer.zero_grad(set_to_none=True)
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "scores": [scores.detach(), "raw"], "value": loss.item()}

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(2, 1, 8, 8, 8).to(memory_format=torch.channels_last_3d)
        return x, torch.randint(0, 2, (2, 4, 4, 4))

    return Job(step, (model,), (optimizer,), batch)


def transformer() -> Job:
    """A language model with tied embeddings, dropout and clipped gradients; batches are slices of a text."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.ModuleDict({"embed": nn.Embedding(11, 16), "layer": layer, "head": nn.Linear(16, 11, bias=False)})
    model["head"].weight = model["embed"].weight
    optimizer = AdamW(model.parameters(), lr=1e-2)
    trained = list(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        scores = model["head"](model["layer"](model["embed"](x), src_mask=mask, is_causal=True))
        loss = F.cross_entropy(scores.flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def batch() -> tuple[Tensor, Tensor]:
        text = torch.randint(0, 11, (3, 10))
        begin = int(torch.randint(0, 3, ()))
        return text[:, begin : begin + 6], text[:, begin + 1 : begin + 7]

    return Job(step, (model,), (optimizer,), batch)


def two_optimizers() -> Job:
    """A generator and a critic that take turns, and a running average of the generator's weights."""
    generator, critic, average = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 8)
    optimizers = (Adam(generator.parameters(), lr=1e-2), SGD(critic.parameters(), lr=1e-1, momentum=0.5))

    def step(x: Tensor, _y: Tensor) -> tuple[Tensor, Tensor]:
        made = generator(torch.randn_like(x))
        judged = F.softplus(critic(made.detach())).mean() + F.softplus(-critic(x)).mean()
        judged.backward()
        optimizers[1].step()
        critic.zero_grad()
        fooled = F.softplus(-critic(made)).mean()
        fooled.backward()
        optimizers[0].step()
        generator.zero_grad()
        critic.zero_grad()
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), generator.parameters(), strict=True):
                kept.lerp_(parameter, 0.5)
        return judged, fooled

    return Job(step, (generator, critic, average), optimizers, _classes)


def penalty() -> Job:
    """A second derivative, a weighted loss with closed-over weights, and a buffer that is replaced."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    model.register_buffer("center", torch.zeros(3))
    optimizer = SGD(model.parameters(), lr=0.1)
    weights = torch.tensor([0.2, 0.3, 0.5])

    def step(x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        scores = model(x) - model.center
        assert isinstance(model.center, Tensor)
        model.center = 0.9 * model.center + 0.1 * scores.detach().mean(0)
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        loss = F.cross_entropy(scores, y, weight=weights) + slope.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), _classes)


def mixed_precision() -> Job:
    """bfloat16 under autocast."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
    optimizer = AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), _classes)


def looked_at_twice() -> Job:
    """The number of a tensor is looked at before and after it is written, as that of a scale that grows."""
    model = nn.Linear(8, 3)
    model.register_buffer("scale", torch.tensor(8.0))
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        scale = model.get_buffer("scale")
        before = scale.item()
        scale.mul_(0.5)
        loss = F.cross_entropy(model(x), y) * (before - scale.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), _classes)


JOBS = (
    adam,
    adamw,
    adam_foreach,
    adam_with_a_tensor_rate,
    sgd,
    gradients_cleared_first,
    gradients_accumulated,
    volumes,
    transformer,
    two_optimizers,
    penalty,
    mixed_precision,
    looked_at_twice,
)
