"""What do ordinary training steps do? One function for each feature, all small and seeded."""

import math
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    lr_scheduler,
)
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tests.frontends.steps import Job, trained

Make = Callable[[], Job]
ROWS = 200
OPTIMIZERS: tuple[Callable[..., Optimizer], ...] = (
    partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    partial(SGD, lr=0.1, momentum=0.9, fused=True),
    partial(Adam, amsgrad=True),
    partial(Adam, fused=True),
    partial(AdamW, foreach=True, maximize=True),
    partial(Adamax, foreach=True),
    partial(NAdam, decoupled_weight_decay=True, weight_decay=0.1),
    partial(RMSprop, momentum=0.9, centered=True),
    partial(Rprop, foreach=True),
    partial(Adagrad, lr_decay=0.1),
    partial(Adagrad, fused=True),
    partial(Adadelta, foreach=True, weight_decay=0.1),
    partial(Adafactor, lr=0.05),
    partial(Adafactor, foreach=True, weight_decay=0.1),
)
BRANCHING: tuple[Callable[..., Optimizer], ...] = (
    partial(RAdam),
    partial(RAdam, foreach=True, weight_decay=0.1),
    partial(ASGD, t0=5),
    partial(ASGD, t0=5, foreach=True, weight_decay=0.1),
)
"""These ask how many steps there were; what they do changes at the sixth."""


def net() -> nn.Sequential:
    """A perceptron with batch norm and dropout, deep enough for there to be less than all at once."""
    blocks = [
        module for width in (8, 16) for module in (nn.Linear(width, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2))
    ]
    return nn.Sequential(*blocks, nn.Linear(16, 3))


def rows() -> tuple[Tensor, Tensor]:
    """Rows and their classes: what is made of them takes more than the weights."""
    return torch.randn(ROWS, 8), torch.randint(0, 3, (ROWS,))


def by(make: Callable[..., Optimizer]) -> Make:
    """Train `net` with an optimizer of some kind."""

    def job() -> Job:
        model = net()
        return trained(model, make(model.parameters()), rows)

    return job


def under_way(make: Callable[..., Optimizer]) -> Make:
    """The same after four steps, since optimizers branch on how many there were."""

    def job() -> Job:
        made = by(make)()
        for _ in range(4):
            made.step(*made.batch())
        return made

    return job


def matrices_by_muon() -> Job:
    """Muon takes matrices alone, so another optimizer takes the rest."""
    model = net()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    optimizers = Muon(matrices), Adam(others)

    def step(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return Job(step, (model,), optimizers, rows)


class Warming(SGD):
    """Counts its steps in a tensor of each group, which the first one makes, as LAMB of timm does."""

    def step(self) -> None:
        for group in self.param_groups:
            group.setdefault("step", torch.zeros(()))
            group["step"] += 1
            for parameter in group["params"]:
                with torch.no_grad():
                    parameter.sub_(parameter.grad * group["lr"] / group["step"])


def counted_by_group() -> Job:
    """The optimizer's own count is in its groups."""
    model = net()
    return trained(model, Warming([{"params": model[:4].parameters()}, {"params": model[4:].parameters()}]), rows)


class InPython(Optimizer):
    """Counts in Python numbers, as optimizers of many libraries do: of a parameter, and of a group."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "calls": 0})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            group["calls"] += 1
            rate = group["lr"] / math.sqrt(group["calls"])
            for parameter in group["params"]:
                self._update(parameter, self.state[parameter], group["betas"], rate)

    def _update(self, parameter: Tensor, state: dict[str, Any], betas: tuple[float, float], rate: float) -> None:
        beta1, beta2 = betas
        if not state:
            state |= {"step": 0, "decay": 1.0, "is_first": True}
            state |= {"mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
        assert parameter.grad is not None
        state["step"] += 1
        state["decay"] *= 0.99
        state["mean"].lerp_(parameter.grad, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        bias = math.sqrt(1 - math.pow(beta2, state["step"])) / (1 - beta1 ** state["step"])
        warm = min(1.0, state["step"] / 2) * (0.5 if state["is_first"] else state["decay"])
        state["is_first"] = False
        parameter.addcdiv_(state["mean"], state["square"].sqrt().add_(1e-8), value=-rate * bias * warm)


def counted_in_python() -> Job:
    """The numbers of later steps are others."""
    model = net()
    return trained(model, InPython(model.parameters()), rows)


def parameter_groups() -> Job:
    """Rates, decays and betas of their own, and a frozen layer."""
    model = net()
    model[1].requires_grad_(False)
    groups: list[dict[str, object]] = [
        {"params": model[0].parameters(), "lr": 0.1, "weight_decay": 0.0},
        {"params": model[4:].parameters(), "betas": (0.5, 0.6)},
    ]
    return trained(model, AdamW(groups, lr=0.01), rows)


def scheduler_in_the_step() -> Job:
    """The scheduler cycles rate and momentum after every batch, and the step returns the rate."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10)

    def step(x: Tensor, y: Tensor) -> dict[str, object]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        (rate,) = scheduler.get_last_lr()
        scheduler.step()
        return {"loss": loss, "rate": rate}

    return Job(step, (model,), (optimizer,), rows)


def clipped() -> Job:
    """Gradients clipped by value and by norm, and the norm returned."""
    model = net()
    optimizer = Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss, norm

    return Job(step, (model,), (optimizer,), rows)


def decided() -> Job:
    """By the loss, by the norm of gradients that are added up, and after the update by what was there before it."""
    model = net()
    optimizer = Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if not torch.isfinite(loss):
            return loss, 0.0
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if norm < 1e6:
            optimizer.step()
        return norm, min(loss.item(), 1e6)

    return Job(step, (model,), (optimizer,), rows)


def accumulated() -> Job:
    """Gradients of two halves of the batch, added up."""
    model = net()
    optimizer = Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        for part, classes in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.cross_entropy(model(part), classes) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Job(step, (model,), (optimizer,), rows)


def accumulated_between_calls() -> Job:
    """Gradients of two calls, added up, for an optimizer that writes them with the weights; and of one."""
    model = net()
    optimizer = Adam(model.parameters(), fused=True)
    updates = iter((False, True, True))

    def step(x: Tensor, y: Tensor, update: bool) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), lambda: (*rows(), next(updates)))


def checked() -> Job:
    """Distributions that check what they are given, a loss of variances, and a norm that has to be finite."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        found = model(x)
        spread = torch.distributions.Normal(found, found.exp(), validate_args=True)
        among = torch.distributions.Categorical(logits=found, validate_args=True)
        loss = F.gaussian_nll_loss(found, spread.rsample(), found.exp()) - among.log_prob(y).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


def autocast() -> Job:
    """bfloat16 under autocast, with all normalisations, whose statistics stay in 32 bits."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.Conv2d(8, 8, 1),
        nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(8),
        nn.Linear(8, 3),
    )
    optimizer = AdamW(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), lambda: (torch.randn(ROWS, 3, 6, 6), torch.randint(0, 3, (ROWS,))))


def scaled() -> Job:
    """float16 with a gradient scaler that has not been used before."""
    model = net()
    optimizer = Adam(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu")

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Job(step, (model,), (optimizer,), rows)


def averaged() -> Job:
    """An exponential moving average of weights and buffers."""
    model, average = net(), net().requires_grad_(False)
    optimizer = Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.1)
            for kept, buffer in zip(average.buffers(), model.buffers(), strict=True):
                kept.copy_(buffer)
        return loss

    return Job(step, (model, average), (optimizer,), rows)


def averaged_by_torch() -> Job:
    """Torch's own average of a model, which begins as a copy."""
    model = net()
    average, optimizer = AveragedModel(model), Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss

    return Job(step, (model, average), (optimizer,), rows)


@dataclass
class Batch:
    """A batch as a dataclass, and what a step returns as another."""

    x: Tensor
    labels: dict[str, Tensor]
    weights: Tensor | None = None


def nested() -> Job:
    """A dataclass with a dict and a None in it, given by keyword, and one returned."""
    model = net()
    optimizer = Adam(model.parameters())

    def step(batch: Batch, scale: float = 1.0) -> Batch:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.x) * scale, batch.labels["classes"], weight=batch.weights)
        loss.backward()
        optimizer.step()
        return Batch(loss, {"twice": loss.detach() + loss.detach()})

    def batch() -> tuple[Batch]:
        x, y = rows()
        return (Batch(x, {"classes": y}),)

    return Job(step, (model,), (optimizer,), batch)


def doubled(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return output * 2


def hooked() -> Job:
    """Hooks on modules, on tensors, and after gradients are complete."""
    model = net()
    first, activation, last = model[0], model[2], model[-1]
    first.register_forward_pre_hook(lambda _module, inputs: (inputs[0] + 1,))
    first.register_forward_hook(doubled)
    activation.register_full_backward_hook(lambda _module, gradients, _outputs: (gradients[0] / 2,))
    assert isinstance(last, nn.Linear)
    last.weight.register_hook(torch.tanh)

    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    last.bias.register_post_accumulate_grad_hook(halve)
    return trained(model, Adam(model.parameters()), rows)


def optimizers_in_hooks() -> Job:
    """Every parameter is updated as soon as its gradient is there."""
    model = net()
    optimizers = tuple(SGD([parameter], lr=0.1, momentum=0.9) for parameter in model.parameters())
    for parameter, optimizer in zip(model.parameters(), optimizers, strict=True):

        def update(_parameter: Tensor, optimizer: Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return Job(step, (model,), optimizers, rows)


class Cube(torch.autograd.Function):
    """x^3, with a gradient of its own."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
        return 2 * gradient * x * x


class Cubes(nn.Module):
    """`Cube` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        found = Cube.apply(x)
        assert isinstance(found, Tensor)
        return found


def custom_function() -> Job:
    model = nn.Sequential(net(), Cubes())
    return trained(model, Adam(model.parameters()), rows)


class Checkpointed(nn.Module):
    """Blocks with dropout that draw the same numbers twice."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(8, 3)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


def checkpointed() -> Job:
    model = Checkpointed(use_reentrant=False)
    return trained(model, Adam(model.parameters()), rows)


def checkpointed_reentrant() -> Job:
    model = Checkpointed(use_reentrant=True)
    return trained(model, Adam(model.parameters()), rows)


def checkpointed_selectively() -> Job:
    """Products are kept; dropout, and what follows it, is computed twice."""
    model = net()
    optimizer = Adam(model.parameters())

    def policy(_context: SelectiveCheckpointContext, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
        is_product = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False, context_fn=contexts), y)
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


class Spectral(nn.Module):
    """Rows turned by angles, and their waves weighed by complex numbers: the backward pass reads conjugates."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: Tensor
        self.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.waves = nn.Parameter(torch.randn(2, 8, 3, dtype=torch.complex64))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.reshape(len(x), 4, 2)) * self.turns
        waves = torch.fft.rfft(torch.view_as_real(turned).reshape(len(x), 2, 4), n=8)
        weighed = torch.einsum("nif,iof->nof", waves[..., :3], self.waves)
        return self.head(torch.fft.irfft(weighed, n=8).sum(1))


def spectral() -> Job:
    model = Spectral()
    return trained(model, Adam(model.parameters()), rows)


class Recurrent(nn.Module):
    """What a recurrent network says last."""

    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.inner(x)
        return self.head(outputs[:, -1])


def recurrent(inner: nn.RNNBase) -> Job:
    model = Recurrent(inner)
    model(torch.zeros(1, 3, 8))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return trained(model, optimizer, lambda: (torch.randn(ROWS, 3, 8), torch.randint(0, 3, (ROWS,))))


def lstm() -> Job:
    return recurrent(nn.LSTM(8, 8, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True))


def gru() -> Job:
    return recurrent(nn.GRU(8, 8, num_layers=2, batch_first=True))


class Translator(nn.Module):
    """An encoder and a decoder that look at their masks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 16, padding_idx=0)
        self.inner = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 9)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        said = self.inner(self.words(source), self.words(target), tgt_mask=causal, src_key_padding_mask=source == 0)
        return self.head(said)


def attention_decoder() -> Job:
    """Attention with a causal mask, whose contents torch itself looks at, and padding."""
    model = Translator()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(source: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = model(source, target).flatten(0, 1)
        loss = F.cross_entropy(scores, target.flatten(), ignore_index=0, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), lambda: (torch.randint(0, 9, (ROWS, 6)), torch.randint(0, 9, (ROWS, 5))))


def random_numbers() -> Job:
    """Many ways to draw from the generator."""
    model = net()
    optimizer = Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        x = x + torch.rand_like(x) * torch.bernoulli(torch.full_like(x, 0.5)) + torch.normal(0.0, 1.0, x.shape)
        x = x[torch.randperm(ROWS)] + x[torch.multinomial(torch.ones(ROWS), ROWS)] + torch.randint(0, 3, x.shape)
        x = x + torch.empty_like(x).uniform_() + torch.empty_like(x).exponential_() + F.gumbel_softmax(x)
        x = x * torch.empty(ROWS, 1, dtype=torch.long).random_(1, 9)
        x = F.rrelu(x, training=True) + F.alpha_dropout(x, 0.1, training=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


def chosen() -> Job:
    """Elements that masks of the step's own choose, in each of the ways."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        lower = torch.ones(ROWS, x.shape[1], dtype=torch.bool).tril()
        x = x.clone()
        x[~lower] = 2 * x[~lower] - 1
        scores = model(x)
        rows, columns = torch.eye(ROWS, scores.shape[1]).nonzero(as_tuple=True)
        even = torch.arange(ROWS) % 2 == 0
        twice = scores.repeat_interleave(torch.arange(ROWS) % 3, dim=0)
        loss = F.cross_entropy(scores[even], y[even]) + scores[rows, columns].sum() + twice.square().mean()
        loss = loss + scores.masked_select(even[:, None].expand_as(scores)).mean() + scores[torch.where(even)[0]].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


class Oscillating(nn.Module):
    """A diagonal state space, whose states turn as they fade."""

    def __init__(self) -> None:
        super().__init__()
        self.fading, self.turning = nn.Parameter(torch.rand(8, 4)), nn.Parameter(torch.rand(8, 4))
        self.read = nn.Parameter(torch.randn(8, 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        rates = -torch.exp(self.fading) + 1j * self.turning
        kernel = torch.exp(rates[..., None] * torch.arange(x.shape[-1])) * torch.view_as_complex(self.read)[..., None]
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(2 * kernel.sum(1).real), n=x.shape[-1])


def state_space() -> Job:
    """Numbers that are complex by themselves."""
    model = nn.Sequential(Oscillating(), nn.Flatten(), nn.Linear(8 * 16, 3))
    return trained(model, Adam(model.parameters()), lambda: (torch.randn(ROWS, 8, 16), torch.randint(0, 3, (ROWS,))))


def complex_layers() -> Job:
    """Products of complex matrices, with vectors and with themselves, whose gradients are products with conjugates."""
    model = nn.Sequential(nn.Linear(8, 24, dtype=torch.complex64), nn.Linear(24, 3, dtype=torch.complex64))
    optimizer = Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        scores = model(torch.complex(x, x.roll(1, 0)))
        weighed = scores @ model[1].bias
        loss = F.cross_entropy(scores.abs(), y) + (scores.mH @ scores).abs().mean() + weighed.abs().sum()
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


def copied() -> Job:
    """Weights that move a little towards where some steps of a copy lead, as by Reptile."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        before, learner, seen = deepcopy(model.state_dict()), deepcopy(model), deepcopy(x)
        loss = F.cross_entropy(model(x), y) + F.cross_entropy(learner(seen.mul_(2)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after = model.state_dict()
        model.load_state_dict({name: item + 0.3 * (after[name] - item) for name, item in before.items()})
        return loss

    return Job(step, (model,), (optimizer,), rows)


def averaged_by_data() -> Job:
    """A teacher that follows by `.data`, as momentum encoders do, with a second look at what was there before."""
    model, teacher = net(), net()
    teacher.requires_grad_(requires_grad=False)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        before = [parameter.flatten() for parameter in teacher.parameters()]
        with torch.no_grad():
            for parameter, kept in zip(model.parameters(), teacher.parameters(), strict=True):
                kept.data = kept.data * 0.9 + parameter.data * 0.1
            wanted = teacher(x)
        pairs = zip(teacher.parameters(), before, strict=True)
        moved = sum((kept.flatten() - old).square().sum() for kept, old in pairs)
        loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x), wanted) + moved
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model, teacher), (optimizer,), rows)


class Sharp(SGD):
    """Gradients from where the loss is highest near by; weights come back by `.data`, and share their memory then."""

    @torch.no_grad()
    def climb(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["old"] = parameter.data.clone()
                parameter.add_(parameter.grad, alpha=0.05)

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = self.state[parameter]["old"]
        self.step()


def sharpness_aware() -> Job:
    """Two passes, from different weights."""
    model = net()
    optimizer = Sharp(model.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.climb()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.descend()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), rows)


def updated_by_data() -> Job:
    """No optimizer: gradients and activations are written, and weights are views of one vector afterwards.

    Between the passes autograd has a weight itself, which is another one then, and views of it, which stay.
    """
    model = net()

    def step(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        scores = model(x)
        squashed = scores.tanh()
        squashed.data = squashed.data.clamp(-0.5, 0.5)
        weight = model.get_parameter("8.weight")
        loss = F.cross_entropy(scores + squashed, y) + (weight * weight).sum()
        weight.data = weight.data * 3
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.data = parameter.grad.data / (parameter.grad.norm() + 1e-6)
        flat = nn.utils.parameters_to_vector(model.parameters())
        slopes = nn.utils.parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])
        nn.utils.vector_to_parameters(flat - 0.1 * slopes, model.parameters())
        return loss

    return Job(step, (model,), (), rows)


def rounded_for_the_passes() -> Job:
    """Weights of few bits, whose own ones come back by `.data` before they are updated."""
    model = net()
    optimizer = Adam(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        own = [parameter.data for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.data = (parameter.data * 16).round() / 16
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter, data in zip(model.parameters(), own, strict=True):
            parameter.data = data
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


def evaluated() -> Job:
    """No gradient, no optimizer: loss and accuracy."""
    model = net().eval()

    @torch.no_grad()
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores = model(x)
        return F.cross_entropy(scores, y), (scores.argmax(1) == y).float().mean()

    return Job(step, (model,), (), rows)


def autocast_twice() -> Job:
    """Weights that are used twice are cast once, and their gradients summed in 16 bits."""
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))
    optimizer = AdamW(model.parameters())

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y) + model(0.5 * x).abs().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


def taught() -> Job:
    """A teacher with attention in evaluation mode, for which torch has fused kernels."""
    model, layer = net(), nn.TransformerEncoderLayer(8, 2, 32, batch_first=True)
    teacher = nn.Sequential(layer, nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 3)).eval()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = teacher(x[None])[0]
        scores = model(x)
        loss = F.cross_entropy(scores, y) + F.mse_loss(scores, wanted)
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model, teacher), (optimizer,), rows)


def summed() -> Job:
    """Losses that are returned, and for which torch's kernels take the memory of all that they sum."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        wanted = F.one_hot(y, 3).float()
        first, second = F.mse_loss(model(x), wanted), F.smooth_l1_loss(model(0.5 * x), wanted)
        (first + second).backward()
        optimizer.step()
        return first, second

    return Job(step, (model,), (optimizer,), rows)


def in_turns() -> Job:
    """A critic that is trained while the generator is not, and the other way round, which the step leaves so."""
    generator, critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), net()
    optimizers = (Adam(generator.parameters()), Adam(critic.parameters()))

    def trains(model: nn.Module, other: nn.Module) -> None:
        model.requires_grad_()
        other.requires_grad_(requires_grad=False)

    def step(x: Tensor, _y: Tensor) -> tuple[Tensor, Tensor]:
        trains(critic, generator)
        judged = F.softplus(critic(generator(x))).mean() + F.softplus(-critic(x)).mean()
        judged.backward()
        optimizers[1].step()
        critic.zero_grad()
        trains(generator, critic)
        fooled = F.softplus(-critic(generator(x))).mean()
        fooled.backward()
        optimizers[0].step()
        generator.zero_grad()
        return judged, fooled

    return Job(step, (generator, critic), optimizers, rows)


def nothing_returned() -> Job:
    """A step that ends with the optimizer."""
    model = net()
    job = trained(model, Adam(model.parameters()), rows)

    def step(x: Tensor, y: Tensor) -> None:
        job.step(x, y)

    return Job(step, job.models, job.optimizers, job.batch)


def written_in_parts() -> Job:
    """A mask that is made, written through views, and used by every layer; and a rate of NumPy."""
    model = net()
    optimizer = Adam(model.parameters(), lr=np.float64(0.01))

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        mask = torch.ones(len(x), 16)
        mask[:, :4] = x[:, :4]
        mask.diagonal().fill_(0.5)
        for layer in list(model)[:-1]:
            x = layer(x) if isinstance(layer, nn.Linear) else layer(x) * mask
        loss = F.cross_entropy(model[-1](x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Job(step, (model,), (optimizer,), rows)


class OfPoints(nn.Module):
    """A block of a network that skips it, and weighs channels, as those for small images have."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(channels, 2 * channels, 1), nn.Conv2d(2 * channels, channels, 1)
        self.weighing = nn.Conv2d(2 * channels, 2 * channels, 1)
        self.first, self.last = nn.BatchNorm2d(2 * channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu6(self.first(self.wide(x)), inplace=True)
        inner = inner * F.hardsigmoid(self.weighing(F.adaptive_avg_pool2d(inner, 1)))
        return x + self.last(self.narrow(F.pad(inner, (0, 1, 0, 1))[:, :, :1, :1]))


def single_points() -> Job:
    """Maps that are single points are contiguous and channels-last at once."""
    model = nn.Sequential(nn.Conv2d(2, 24, 2), *(OfPoints(24) for _ in range(3)), nn.Conv2d(24, 3, 1), nn.Flatten())
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def images() -> tuple[Tensor, Tensor]:
        x, y = rows()
        return x.view(-1, 2, 2, 2).contiguous(memory_format=torch.channels_last), y

    return trained(model, SGD(model.parameters(), 0.1, momentum=0.9), images)


FEATURES: tuple[Make, ...] = (
    averaged_by_data,
    sharpness_aware,
    updated_by_data,
    rounded_for_the_passes,
    single_points,
    written_in_parts,
    matrices_by_muon,
    parameter_groups,
    counted_by_group,
    counted_in_python,
    scheduler_in_the_step,
    clipped,
    decided,
    accumulated,
    accumulated_between_calls,
    checked,
    autocast,
    scaled,
    averaged,
    averaged_by_torch,
    nested,
    hooked,
    optimizers_in_hooks,
    custom_function,
    checkpointed,
    checkpointed_reentrant,
    checkpointed_selectively,
    spectral,
    lstm,
    gru,
    attention_decoder,
    random_numbers,
    chosen,
    state_space,
    complex_layers,
    copied,
    evaluated,
    autocast_twice,
    taught,
    summed,
    in_turns,
    nothing_returned,
)


def named() -> Iterator[tuple[str, Make]]:
    """Yield every feature and every optimizer with its name."""
    yield from ((make.__name__, make) for make in FEATURES)
    for optimizers, trained_by, when in ((OPTIMIZERS, by, ""), (BRANCHING, under_way, " under way")):
        for make in optimizers:
            assert isinstance(make, partial)
            options = ", ".join(f"{key}={value}" for key, value in make.keywords.items())
            yield f"{make.func.__name__}({options}){when}", trained_by(make)
