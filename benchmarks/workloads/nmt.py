"""Translation with additive attention: every word that is written holds a tensor as large as all keys.

Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate"
(https://arxiv.org/abs/1409.0473). The score of source place s when the target word t is written is

    v . tanh(key[s] + query[t])

so each of the `steps` target words holds a (batch, steps, units) tensor until the backward pass:
O(steps^2 batch units) bytes, where the recurrences take O(steps batch units). Departures: LSTM cells in place
of gated recurrent units, and an encoder that reads in one direction.
"""

import torch
from lstm import Recurrence
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import adam, minimised

from outgrow import Workload


def attention_nmt(
    *,
    batch: int = 64,
    steps: int = 50,
    units: int = 1024,
    layers: int = 2,
    vocabulary: int = 32_000,
    dtype: str = "float32",
) -> Workload:
    """Return the training of a translator on `batch` pairs of sentences of `steps` words each, with Adam."""
    torch.manual_seed(0)
    model = Translator(vocabulary, units, layers)
    source, target, following = (torch.randint(vocabulary, (batch, steps)) for _ in range(3))

    def loss(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), following.flatten())

    return minimised(model, adam(model, lr=1e-4), loss, (source, target, following), dtype)


class Translator(nn.Module):
    """Logits of the words of the translation (N, steps, vocabulary)."""

    def __init__(self, vocabulary: int, units: int, layers: int) -> None:
        super().__init__()
        self.source_words, self.target_words = nn.Embedding(vocabulary, units), nn.Embedding(vocabulary, units)
        self.encoder = Recurrence(units, units, layers)
        self.decoder = Recurrence(2 * units, units, layers)
        self.attention = AdditiveAttention(units)
        self.head = nn.Linear(2 * units, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = self.encoder.at_rest(source.shape[0])
        read: list[Tensor] = []
        for x in self.source_words(source).unbind(1):
            said, state = self.encoder(x, state)
            read.append(said)
        values = torch.stack(read, dim=1)
        keys = self.attention.keys(values)
        context = torch.zeros_like(read[-1])
        written: list[Tensor] = []
        for x in self.target_words(target).unbind(1):
            said, state = self.decoder(torch.cat([x, context], dim=1), state)
            context = self.attention(said, keys, values)
            written.append(torch.cat([said, context], dim=1))
        return self.head(torch.stack(written, dim=1))


class AdditiveAttention(nn.Module):
    """The mean of the values, weighted by how well their keys fit the query."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.keys = nn.Linear(units, units, bias=False)
        self.query = nn.Linear(units, units, bias=False)
        self.score = nn.Linear(units, 1, bias=False)

    def forward(self, said: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = self.score(torch.tanh(keys + self.query(said)[:, None]))
        weights = scores.softmax(dim=1)
        return torch.bmm(weights.transpose(1, 2), values)[:, 0]
