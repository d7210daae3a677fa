"""GPT-2 on text, with fused attention: the same block many times over.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", in its four published sizes. The
matrix of embeddings is also that of the logits. Attention is one operator, which keeps no probabilities;
there is no dropout, since the attention operator of a CPU has none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import adamw, known, minimised

from outgrow import Workload

VOCABULARY = 50_257
POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers, width and heads of a model."""

    layers: int
    width: int
    heads: int


SHAPES = {
    "small": Shape(12, 768, 12),
    "medium": Shape(24, 1024, 16),
    "large": Shape(36, 1280, 20),
    "xl": Shape(48, 1600, 25),
}


def gpt2(*, size: str = "small", batch: int = 8, length: int = 1024, dtype: str = "float32") -> Workload:
    """Return the training of a GPT-2 on `batch` texts of `length` tokens with AdamW.

    `size` is "small", "medium", "large" or "xl". Raises `ValueError` for another, and for texts longer than
    1024.
    """
    shape = SHAPES[known("size", size, tuple(SHAPES))]
    if not 0 < length <= POSITIONS:
        raise ValueError(f"length {length} is not between 1 and {POSITIONS}, the positions that GPT-2 knows.")
    torch.manual_seed(0)
    model = Gpt2(shape)
    tokens, following = torch.randint(VOCABULARY, (batch, length)), torch.randint(VOCABULARY, (batch, length))

    def loss(tokens: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())

    return minimised(model, adamw(model), loss, (tokens, following), dtype)


class Gpt2(nn.Module):
    """Logits of the next token (N, length, 50257)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(POSITIONS, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


class Block(nn.Module):
    """Causal attention and two linear layers, each normalized before it and added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.attention(self.norm1(x)))
        return x + self.inner(self.norm2(x))

    def attention(self, x: Tensor) -> Tensor:
        """Return what each token gathers from itself and those before it."""
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        gathered = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return gathered.transpose(1, 2).reshape(batch, length, width)
