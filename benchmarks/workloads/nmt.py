"""Translation with additive attention: every word that is written holds a tensor as large as all keys.

Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate"
(https://arxiv.org/abs/1409.0473). The score of source place s when the target word t is written is

    v . tanh(key[s] + query[t])

so each of the `steps` target words holds a (batch, steps, units) tensor until the backward pass:
O(steps^2 batch units) bytes, where the recurrences take O(steps batch units). Departures: LSTM cells in place
of gated recurrent units, and an encoder that reads in one direction.

With the loss "at once" all logits, (batch, steps, vocabulary), are one tensor, as most programs have it today; "word by
word" they are made and judged when a word is written, as programs did that unrolled both recurrences into one graph.
"""

import torch
from lstm import Recurrence
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import adam, known, minimised

from outgrow import Workload


def attention_nmt(
    *,
    batch: int = 64,
    steps: int = 50,
    units: int = 1024,
    layers: int = 2,
    vocabulary: int = 32_000,
    loss: str = "at once",
    dtype: str = "float32",
) -> Workload:
    """Return the training of a translator on `batch` pairs of sentences of `steps` words each, with Adam.

    `loss` is "at once" or "word by word". Raises `ValueError` for another.
    """
    torch.manual_seed(0)
    model = Translator(vocabulary, units, layers)
    source, target, following = (torch.randint(vocabulary, (batch, steps)) for _ in range(3))

    def at_once(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        logits = model.head(torch.stack(model(source, target), dim=1))
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())

    def word_by_word(source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        written = zip(model(source, target), following.unbind(1), strict=True)
        return torch.stack([F.cross_entropy(model.head(x), y) for x, y in written]).mean()

    losses = {"at once": at_once, "word by word": word_by_word}
    chosen = losses[known("loss", loss, tuple(losses))]
    return minimised(model, adam(model, lr=1e-4), chosen, (source, target, following), dtype)


class Translator(nn.Module):
    """What is known of each word that is written (N, 2 units), of which `head` makes its logits (N, vocabulary)."""

    def __init__(self, vocabulary: int, units: int, layers: int) -> None:
        super().__init__()
        self.source_words, self.target_words = nn.Embedding(vocabulary, units), nn.Embedding(vocabulary, units)
        self.encoder = Recurrence(units, units, layers)
        self.decoder = Recurrence(2 * units, units, layers)
        self.attention = AdditiveAttention(units)
        self.head = nn.Linear(2 * units, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> list[Tensor]:
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
        return written


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
