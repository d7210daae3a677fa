"""What is trained on a GPU? Networks at the sizes at which people train them, on noise, from fixed seeds.

    resnet50            He et al. 2016, pictures of 224 x 224, SGD with momentum, channels-last
    unet3d              the 3D U-Net of the examples on one volume of noise, 192^3, fp32, Adam
    gpt2                Radford et al. 2019, as transformers has it, texts of 1024 tokens, AdamW
    bert                Devlin et al. 2019, as transformers has it, texts of 512 tokens, AdamW

All but the U-Net run under autocast in bfloat16, with weights in float32. Attention is torch's own operator. There is
no dropout unless it is asked for. Optimizers go tensor by tensor, and their state is there from the start, as the zeros
that a first step would make, so that all steps are alike. Models are made on the device, batches on the CPU.

`convolutions` and `attention` are small and have many operators; `mlp` is for machines without a GPU.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from main_job import ROOT
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

IGNORED = -100
"""The label of a token that is left out of the loss."""


@dataclass(frozen=True, slots=True)
class Training:
    """A model with its loss and optimizer, a batch, the blocks that it repeats, and what makes it checkpoint them."""

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[..., Tensor]
    batch: tuple[Tensor, ...]
    blocks: tuple[nn.Module, ...]
    checkpoint: Callable[[], object]


def step_of(loss: Callable[..., Tensor], optimizer: Optimizer) -> Callable[..., Tensor]:
    """Return the ordinary step."""

    def step(*batch: Tensor) -> Tensor:
        value = loss(*batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    return step


def resnet50(device: torch.device, *, batch: int = 512, size: int = 224) -> Training:
    """Return the training of a ResNet-50 on `batch` pictures; 512 take about 23 GB in core."""
    resnet, common = _module("benchmarks/workloads", "resnet"), _module("benchmarks/workloads", "training_step")
    torch.manual_seed(0)
    with device:
        model = common.channels_last(resnet.ResNet(resnet.BLOCKS[50]))
    blocks = tuple(module for module in model.modules() if isinstance(module, resnet.Bottleneck))
    data = common.pictures(batch, 3, size, size), torch.randint(resnet.CLASSES, (batch,))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return nn.functional.cross_entropy(model(x), y)

    return Training(model, common.sgd(model), loss, data, blocks, functools.partial(_checkpoint, blocks))


def unet3d(device: torch.device, *, size: int = 192, channels: int = 16) -> Training:
    """Return the training of the examples' 3D U-Net on one volume of noise."""
    example, common = _module("examples", "brain_unet3d"), _module("benchmarks/workloads", "training_step")
    torch.manual_seed(0)
    with device:
        model = example.UNet3d(channels)
        example.lay_out(model)
    blocks = tuple(module for module in model.modules() if isinstance(module, example.TwoConvolutions))
    labels = torch.randint(example.CLASSES, (1, size, size, size))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return example.cross_entropy(model(x), y)

    data = common.pictures(1, 1, size, size, size), labels
    return Training(model, common.adam(model, lr=3e-3), loss, data, blocks, functools.partial(_checkpoint, blocks))


def gpt2(
    device: torch.device,
    *,
    batch: int = 16,
    length: int = 1024,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    dropout: float = 0.0,
) -> Training:
    """Return the training of a GPT-2 on `batch` texts, to tell the next token; by default it is the medium one."""
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        n_positions=length,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
    )
    model: Any = _made(AutoModelForCausalLM, config, device)
    tokens = torch.randint(config.vocab_size, (batch, length))
    return _language(device, model, model.transformer.h, (tokens, tokens))


def bert(
    device: torch.device,
    *,
    batch: int = 64,
    length: int = 512,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    dropout: float = 0.0,
) -> Training:
    """Return the training of a BERT on `batch` texts, to tell 15 % of the tokens; by default it is the large one."""
    from transformers import AutoModelForMaskedLM, BertConfig

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=length,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        use_cache=False,
    )
    model: Any = _made(AutoModelForMaskedLM, config, device)
    tokens = torch.randint(config.vocab_size, (batch, length))
    labels = torch.where(torch.rand(batch, length) < 0.15, tokens, IGNORED)
    return _language(device, model, model.bert.encoder.layer, (tokens, labels))


def mlp(device: torch.device, *, batch: int = 4096, width: int = 64, layers: int = 6) -> Training:
    """Return the training of a few linear layers, whose activations are most of what it takes."""
    torch.manual_seed(0)
    with device:
        blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
        model = nn.Sequential(*blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    data = torch.randn(batch, width), torch.randint(width, (batch,))
    return Training(model, optimizer, loss, data, tuple(blocks), functools.partial(_checkpoint, blocks))


def convolutions(device: torch.device, *, batch: int = 64, channels: int = 64, size: int = 56) -> Training:
    """Return a small step with the operators of networks for pictures."""
    common = _module("benchmarks/workloads", "training_step")
    torch.manual_seed(0)
    with device:
        layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        network = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Conv2d(channels, 2 * channels, 1), nn.AvgPool2d(size // 2))
        model = common.channels_last(nn.Sequential(network, nn.Flatten(), nn.Linear(2 * channels, 10)))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return nn.functional.cross_entropy(model(x), y)

    data = common.pictures(batch, channels, size, size), torch.randint(10, (batch,))
    return Training(model, common.adamw(model), loss, data, (network,), functools.partial(_checkpoint, [network]))


class Attention(nn.Module):
    """What each token gathers from those before it, and two linear layers; normalized before both."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.project(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        gathered = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + gathered.transpose(1, 2).reshape(batch, length, width)
        return x + self.inner(self.norm2(x))


def attention(
    device: torch.device,
    *,
    bits: int = 16,
    is_math: int = 0,
    is_cudnn: int = 0,
    batch: int = 8,
    length: int = 512,
    width: int = 512,
    heads: int = 8,
) -> Training:
    """Return a small step with the operators of networks for texts.

    Attention of 16 bits is flash, that of 32 bits efficient, unless it is to be mathematics, or that of cuDNN.
    """
    torch.manual_seed(0)
    with device:
        block = Attention(width, heads)
        model = nn.Sequential(block, nn.Linear(width, 50))
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if is_math or is_cudnn:
        kernels = [SDPBackend.MATH if is_math else SDPBackend.CUDNN_ATTENTION]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with sdpa_kernel(kernels), torch.autocast(device.type, dtype=torch.bfloat16, enabled=bits == 16):
            return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    optimizer = _module("benchmarks/workloads", "training_step").adamw(model)
    data = torch.randn(batch, length, width), torch.randint(50, (batch, length))
    return Training(model, optimizer, loss, data, (block,), functools.partial(_checkpoint, [block]))


TRAININGS: Mapping[str, Callable[..., Training]] = {
    function.__name__: function for function in (resnet50, unet3d, gpt2, bert, mlp, convolutions, attention)
}


# What they have in common -----------------------------------------------------------------------------------------


def _made(kind: Any, config: Any, device: torch.device) -> nn.Module:
    """Return a model of transformers with random weights."""
    torch.manual_seed(0)
    with device:
        return kind.from_config(config, attn_implementation="sdpa").train()


def _language(device: torch.device, model: Any, blocks: Sequence[nn.Module], data: tuple[Tensor, Tensor]) -> Training:
    """Return the training of a model of transformers."""

    def loss(tokens: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return model(input_ids=tokens, labels=labels).loss

    def checkpoint() -> None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    optimizer = _module("benchmarks/workloads", "training_step").adamw(model)
    return Training(model, optimizer, loss, data, tuple(blocks), checkpoint)


def _checkpoint(blocks: Sequence[Any]) -> None:
    """Put torch.utils.checkpoint around each block."""
    from torch.utils.checkpoint import checkpoint

    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _module(folder: str, name: str) -> Any:
    """Return a module of a folder of this repository."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / folder))
