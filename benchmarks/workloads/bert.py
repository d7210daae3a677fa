"""BERT on masked text: attention with its probabilities written out, as it was published.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(https://arxiv.org/abs/1810.04805): both objectives, masked words at given places and whether one sentence
follows the other. The attention holds its (length x length) probabilities, with dropout, until the backward
pass: what the planners of its time had to deal with. Sentences are not padded, so there is no mask.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import adamw, known, minimised

from outgrow import Workload

VOCABULARY = 30_522
POSITIONS = 512
MASKED_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers, width and heads of a model."""

    layers: int
    width: int
    heads: int


SHAPES = {"tiny": Shape(2, 128, 2), "base": Shape(12, 768, 12), "large": Shape(24, 1024, 16)}
"""Base and large are the paper's, tiny is that of Turc et al. 2019 (https://arxiv.org/abs/1908.08962)."""


def bert(
    *, size: str = "large", batch: int = 8, length: int = 512, dropout: float = 0.1, dtype: str = "float32"
) -> Workload:
    """Return the pre-training of a BERT on `batch` texts of `length` tokens with AdamW.

    `size` is "tiny", "base" or "large". Raises `ValueError` for another, and for texts longer than 512.
    """
    shape = SHAPES[known("size", size, tuple(SHAPES))]
    if not 0 < length <= POSITIONS:
        raise ValueError(f"length {length} is not between 1 and {POSITIONS}, the positions that BERT knows.")
    torch.manual_seed(0)
    model = Bert(shape, dropout)
    masked = max(1, round(MASKED_SHARE * length))
    tokens, kinds = torch.randint(VOCABULARY, (batch, length)), torch.randint(2, (batch, length))
    places, words = torch.randint(length, (batch, masked)), torch.randint(VOCABULARY, (batch, masked))
    follows = torch.randint(2, (batch,))

    def loss(tokens: Tensor, kinds: Tensor, places: Tensor, words: Tensor, follows: Tensor) -> Tensor:
        word_logits, follow_logits = model(tokens, kinds, places)
        return F.cross_entropy(word_logits.flatten(0, 1), words.flatten()) + F.cross_entropy(follow_logits, follows)

    return minimised(model, adamw(model), loss, (tokens, kinds, places, words, follows), dtype)


class Bert(nn.Module):
    """Logits of the words at masked places (N, masked, 30522), and of what follows (N, 2)."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        width = shape.width
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.kinds = nn.Embedding(2, width)
        self.entry = nn.Sequential(nn.LayerNorm(width), nn.Dropout(dropout))
        self.layers = nn.Sequential(*(Layer(shape, dropout) for _ in range(shape.layers)))
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, tokens: Tensor, kinds: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]] + self.kinds(kinds)
        x = self.layers(self.entry(x))
        masked = x.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))
        words = F.linear(self.transform(masked), self.tokens.weight, self.bias)
        return words, self.pooler(x[:, 0])


class Layer(nn.Module):
    """Attention and two linear layers, each added to its input and normalized after it."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.project = nn.Linear(width, 3 * width)
        self.attended = nn.Sequential(nn.Linear(width, width), nn.Dropout(dropout))
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attended(self.attention(x)))
        return self.norm2(x + self.inner(x))

    def attention(self, x: Tensor) -> Tensor:
        """Return what each token gathers from all others."""
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(2, 3) * (width // self.heads) ** -0.5
        gathered = self.dropout(scores.softmax(dim=-1)) @ value
        return gathered.transpose(1, 2).reshape(batch, length, width)
