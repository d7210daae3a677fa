"""Which networks of sequences do the properties range over? Recurrent, attending and convolving layers, and losses.

Sequences are of (examples, times, features); there may be one example, one time, or one feature.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.frontends.nets import OPTIMIZERS, trained, without_unnamed
from tests.frontends.steps import Job

KINDS = 7


class Layers(nn.Module):
    """Some of layers of every kind, and what is made of them of a sequence, which keeps its shape."""

    def __init__(self, made: str, features: int) -> None:
        super().__init__()
        self.made = MADE[made]
        self.lstm = nn.LSTM(features, features, 2, batch_first=True, dropout=0.2)
        self.both = nn.LSTM(features, features, batch_first=True, bidirectional=True)
        self.projected = nn.LSTM(features, 2 * features, batch_first=True, proj_size=features)
        self.gru, self.rnn = nn.GRU(features, features, bias=False), nn.RNN(features, features, nonlinearity="relu")
        self.cell, self.gated = nn.LSTMCell(features, features), nn.GRUCell(features, features)
        self.attention = nn.MultiheadAttention(features, 1, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(features, 1, 2 * features, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(features, 1, 2 * features, activation="gelu")
        self.near = nn.Conv1d(features, features, 3, padding=2, dilation=2)
        self.strided = nn.Conv1d(features, features, 2, stride=2, padding=1)
        self.spread = nn.ConvTranspose1d(features, features, 2, stride=2, output_padding=1)
        self.norm, self.scaled, self.batch = nn.LayerNorm(features), nn.RMSNorm(features), nn.BatchNorm1d(features)
        self.linear, self.two = nn.Linear(features, features), nn.Linear(features, 2 * features)
        self.bilinear, self.slopes = nn.Bilinear(features, features, features), nn.PReLU(features)
        without_unnamed(self, self.made)

    def forward(self, x: Tensor) -> Tensor:
        return self.made(self, x)


def _stepped(net: Layers, x: Tensor) -> Tensor:
    state, found = (x.new_zeros(x.shape[0], x.shape[2]), x.mean(1)), list[Tensor]()
    for now in x.unbind(1):
        state = net.cell(now, state)
        found.append(state[0])
    return torch.stack(found, 1)


def _gated(net: Layers, x: Tensor) -> Tensor:
    state, found = torch.zeros_like(x[:, 0]), torch.empty_like(x)
    for at in range(x.shape[1]):
        state = net.gated(x[:, at], state)
        found[:, at] = state
    return found


def _causal(net: Layers, x: Tensor) -> Tensor:
    tokens = net.two(net.scaled(x)).unsqueeze(1)
    keys, values = tokens.chunk(2, -1)
    return x + F.scaled_dot_product_attention(x.unsqueeze(1), keys, values, is_causal=True).squeeze(1)


def _masked(net: Layers, x: Tensor) -> Tensor:
    times = torch.arange(x.shape[1])
    weights = torch.einsum("bik,bjk->bij", net.linear(x), x).masked_fill(times[:, None] < times, float("-inf"))
    return torch.einsum("bij,bjk->bik", F.softmax(weights, -1), x)


def _rotated(net: Layers, x: Tensor) -> Tensor:
    one, two = net.two(x).chunk(2, -1)
    angles = torch.arange(x.shape[1]).outer(torch.linspace(0.1, 1, x.shape[2]))
    return one * angles.cos() + two * angles.sin()


def _strided(net: Layers, x: Tensor) -> Tensor:
    return x + net.spread(F.gelu(net.strided(x.mT), approximate="tanh")).mT[:, : x.shape[1]]


def _chosen(net: Layers, x: Tensor) -> Tensor:
    found, where = net.linear(x).sort(1, descending=True)
    return x.gather(1, where) + found.cumsum(1)


def _scattered(net: Layers, x: Tensor) -> Tensor:
    most = net.linear(x).topk(1, 1)
    return x.scatter_add(1, most.indices, most.values.to(x.dtype))


def _indexed(net: Layers, x: Tensor) -> Tensor:
    return net.linear(x)[:, torch.arange(x.shape[1]).flip(0)] + x.index_select(1, torch.zeros(x.shape[1]).long())


def _bilinear(net: Layers, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        x = x.float().contiguous()
        return torch.tanh(net.bilinear(x, x))


def _experts(net: Layers, x: Tensor) -> Tensor:
    gates = F.gumbel_softmax(net.two(x)[..., :2], hard=True)
    return gates[..., :1] * net.linear(x) + gates[..., 1:] * F.silu(x)


MADE: Mapping[str, Callable[[Layers, Tensor], Tensor]] = {
    "lstm": lambda net, x: net.lstm(x)[0],
    "both ways": lambda net, x: sum(net.both(x)[0].chunk(2, -1)) + x,
    "projected": lambda net, x: net.projected(x)[0],
    "gru": lambda net, x: net.gru(x.transpose(0, 1))[0].transpose(0, 1),
    "rnn": lambda net, x: net.rnn(x.transpose(0, 1))[0].transpose(0, 1) + x,
    "stepped": _stepped,
    "gated": _gated,
    "attention": lambda net, x: x + net.attention(x, x, x, need_weights=False)[0],
    "weights": lambda net, x: x + net.attention(x, x, x)[1] @ x,
    "encoder": lambda net, x: net.encoder(x),
    "decoder": lambda net, x: net.decoder(x.transpose(0, 1), x.transpose(0, 1)).transpose(0, 1),
    "causal": _causal,
    "masked": _masked,
    "rotated": _rotated,
    "convolved": lambda net, x: F.mish(net.near(x.mT)).mT + x,
    "strided": _strided,
    "batch": lambda net, x: net.batch(net.linear(x).mT).mT,
    "gated linear": lambda net, x: net.norm(x + F.glu(net.two(x), -1)),
    "chosen": _chosen,
    "scattered": _scattered,
    "indexed": _indexed,
    "experts": _experts,
    "bilinear": _bilinear,
    "slopes": lambda net, x: net.slopes(x.mT).mT * F.softplus(x).log1p(),
    "normal": lambda net, x: F.normalize(net.linear(x), dim=-1) + F.dropout1d(x, 0.2),
}


def _smoothed(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.flatten(0, 1), y.flatten(), label_smoothing=0.1, ignore_index=0)


def _aligned(x: Tensor, y: Tensor) -> Tensor:
    lengths = torch.full((x.shape[0],), x.shape[1])
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), y[:, :1].clamp_min(1), lengths, torch.ones_like(lengths))


def _distant(x: Tensor, y: Tensor) -> Tensor:
    near = F.one_hot(y, KINDS).to(x.dtype)
    return F.triplet_margin_loss(x, near, x.detach().flip(0)) + F.huber_loss(x, near, delta=0.3)


def _likely(x: Tensor, y: Tensor) -> Tensor:
    spread = F.softplus(x[..., 1]) + 0.1
    likely = 0.5 * (spread.log() + (x[..., 0] - y).square() / spread)
    return likely.mean() + F.poisson_nll_loss(x[..., 2], y.to(x.dtype), full=True)


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": lambda x, y: F.cross_entropy(x.mT, y),
    "smoothed": _smoothed,
    "weighted": lambda x, y: F.nll_loss(x.log_softmax(-1).mT, y, torch.linspace(0.5, 2, KINDS)),
    "squares": lambda x, y: F.mse_loss(x, F.one_hot(y, KINDS).to(x.dtype)),
    "absolute": lambda x, y: F.smooth_l1_loss(x, F.one_hot(y, KINDS).to(x.dtype), beta=0.5),
    "each": lambda x, y: F.binary_cross_entropy_with_logits(
        x, F.one_hot(y, KINDS).to(x.dtype), pos_weight=x.new_ones(KINDS)
    ),
    "diverged": lambda x, _: F.kl_div(x.log_softmax(-1), x.detach().flip(1).softmax(-1), reduction="batchmean"),
    "aligned": _aligned,
    "distant": _distant,
    "likely": _likely,
    "margins": lambda x, y: (
        F.multi_margin_loss(x.flatten(0, 1), y.flatten()) + F.soft_margin_loss(x, x.detach().sign())
    ),
    "angles": lambda x, _: F.cosine_embedding_loss(x.flatten(1), x.detach().flatten(1).flip(1), torch.ones(x.shape[0])),
}


@dataclass(frozen=True)
class Net:
    """A network of layers on sequences, its loss, and how it is trained."""

    layers: tuple[str, ...]
    loss: str
    shape: tuple[int, int, int]
    autocast: bool
    clipped: bool
    optimizer: str

    def __call__(self) -> Job:
        """Make it, with its step and its batches."""
        examples, times, features = self.shape
        model = nn.Sequential(
            nn.Embedding(KINDS, features, padding_idx=0),
            *(Layers(name, features) for name in self.layers),
            nn.Linear(features, KINDS),
        )

        def batch() -> tuple[Tensor, Tensor]:
            return torch.randint(0, KINDS, (examples, times)), torch.randint(0, KINDS, (examples, times))

        loss = LOSSES[self.loss]
        return trained(model, loss, self.optimizer, batch, autocast=self.autocast, clipped=self.clipped)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Draw a network."""
    layers = draw(st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=4))
    shape = draw(st.sampled_from(((3, 5, 4), (1, 4, 6), (4, 1, 3), (2, 6, 1))))
    optimizer, loss = draw(st.sampled_from(sorted(OPTIMIZERS))), draw(st.sampled_from(sorted(LOSSES)))
    return Net(tuple(layers), loss, shape, draw(st.booleans()), draw(st.booleans()), optimizer)
