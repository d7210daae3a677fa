"""A language model of stacked LSTM layers: thousands of small operators in a chain over time.

Zaremba et al. 2014, "Recurrent Neural Network Regularization" (https://arxiv.org/abs/1409.2329): the large
model for the Penn Treebank, 1,500 units, 35 time steps, 10,000 words, here without dropout and with any number
of layers. Every cell is written out, so that each gate is a tensor that a plan can see.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from training_step import minimised, sgd

from outgrow import Workload

VOCABULARY = 10_000


def lstm(*, layers: int = 2, batch: int = 20, length: int = 35, units: int = 1500, dtype: str = "float32") -> Workload:
    """Return the training of a language model of `layers` LSTM layers on `batch` texts of `length` words."""
    torch.manual_seed(0)
    model = LanguageModel(layers, units)
    words, following = (torch.randint(VOCABULARY, (batch, length)) for _ in range(2))

    def loss(words: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(model(words).flatten(0, 1), following.flatten())

    return minimised(model, sgd(model, lr=1.0), loss, (words, following), dtype)


class LanguageModel(nn.Module):
    """Logits of the next word (N, length, 10000)."""

    def __init__(self, layers: int, units: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, units)
        self.recurrence = Recurrence(units, units, layers)
        self.head = nn.Linear(units, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        state = self.recurrence.at_rest(words.shape[0])
        found: list[Tensor] = []
        for x in self.words(words).unbind(1):
            said, state = self.recurrence(x, state)
            found.append(said)
        return self.head(torch.stack(found, dim=1))


State = list[tuple[Tensor, Tensor]]
"""What each layer said last, and what it remembers."""


class Recurrence(nn.Module):
    """One time step of LSTM layers on top of each other."""

    def __init__(self, width: int, units: int, layers: int) -> None:
        super().__init__()
        self.units = units
        self.cells = nn.ModuleList(Cell(width if layer == 0 else units, units) for layer in range(layers))

    def at_rest(self, batch: int) -> State:
        """Return the state before the first step."""
        return [(torch.zeros(batch, self.units), torch.zeros(batch, self.units)) for _ in self.cells]

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        after: State = []
        for cell, before in zip(self.cells, state, strict=True):
            x, memory = cell(x, *before)
            after.append((x, memory))
        return x, after


class Cell(nn.Module):
    """An LSTM cell: one product for all four gates, then the gates one by one."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.gates = nn.Linear(width + units, 4 * units)

    def forward(self, x: Tensor, said: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        take, keep, new, say = self.gates(torch.cat([x, said], dim=1)).chunk(4, dim=1)
        memory = torch.sigmoid(keep) * memory + torch.sigmoid(take) * torch.tanh(new)
        return torch.sigmoid(say) * torch.tanh(memory), memory
