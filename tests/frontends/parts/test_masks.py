"""Models of transformers look at masks and positions in parts as in eager mode, and so run the same kernels."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.callback import callback_handler

from outgrow.frontends import dynamo
from outgrow.frontends.parts import masks
from outgrow.frontends.platforms import on_cpu
from outgrow.frontends.preparing.machines import described_machine
from tests.frontends.grouped import WORDS, grouped

pytest.importorskip("transformers")

ROWS, LENGTH = 2, 16

pytestmark = [pytest.mark.usefixtures("parts_apart"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """Its gradients tell which kernels ran."""
    monkeypatch.setattr(on_cpu, "this_machine", lambda _folder: described_machine("xeon-2core-disk"))
    torch.manual_seed(0)
    yield grouped()
    torch._dynamo.reset()


def trained(model: nn.Module, run: nn.Module, more: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the gradients of one step in half precision."""
    model.zero_grad()
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        loss = run(input_ids=tokens, labels=tokens, **more).loss
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def compiled(model: nn.Module, backend: Callable[..., Any], **more: Any) -> nn.Module:
    found = torch.compile(model, backend=backend, **more)
    assert isinstance(found, nn.Module)
    return found


def ours(model: nn.Module) -> nn.Module:
    return compiled(model, dynamo.backend, options={"memory_budget": "8GiB"})


def padded() -> Tensor:
    mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[1, LENGTH // 2 :] = 0
    return mask


def test_no_mask_is_made_where_eager_makes_none(model: nn.Module) -> None:
    """Positions of the model's own making follow each other, which is known without a break of the graph."""
    expected = trained(model, model, {})
    found = trained(model, ours(model), {})
    assert all(map(torch.equal, found, expected))
    (budget,) = dynamo.parts().budgets
    assert len(budget.parts) == 1


@pytest.mark.parametrize("mask", [torch.ones(ROWS, LENGTH, dtype=torch.int64), padded()], ids=["ones", "padded"])
def test_a_mask_is_looked_at(model: nn.Module, mask: Tensor) -> None:
    """One of ones is left out, another one is not."""
    expected = trained(model, model, {"attention_mask": mask})
    found = trained(model, ours(model), {"attention_mask": mask})
    assert all(map(torch.equal, found, expected))


def test_positions_of_packed_sequences_are_looked_at(model: nn.Module) -> None:
    """Those that the user gives may say that several sequences lie in a row."""
    run, row = ours(model), torch.arange(LENGTH)
    for positions in (row, row % (LENGTH // 2)):
        more = {"position_ids": positions.expand(ROWS, -1)}
        assert all(map(torch.equal, trained(model, run, more), trained(model, model, more)))


def test_other_backends_go_the_ways_that_they_went(model: nn.Module) -> None:
    """Where nothing of ours is read, transformers keeps a mask without a look at it: the graph has no break for it."""
    ours(model)
    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, _inputs: object) -> fx.GraphModule:
        graphs.append(graph)
        return graph

    trained(model, compiled(model, backend), {"attention_mask": padded()})
    assert len(graphs) == 1


class Encoding(nn.Module):
    """A classifier of sequences, of which 0 is the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(x), src_key_padding_mask=x == 0).mean(1))


def test_an_encoder_that_is_evaluated_leaves_out_the_padding() -> None:
    """As in eager mode, between steps that train."""
    torch.manual_seed(0)
    model, x = Encoding(), torch.randint(1, WORDS, (ROWS, LENGTH))
    x[1, LENGTH // 2 :] = 0
    run = ours(model)
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            assert torch.equal(run(x), model(x))
        model.train()
        expected = torch.autograd.grad(model(x).sum(), [*model.parameters()])
        run(x).sum().backward()
        found = [parameter.grad for parameter in model.parameters()]
        assert all(one is not None and torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        model.zero_grad()


class Attending(nn.MultiheadAttention):
    """An attention to itself, past padding."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return super().forward(x, x, x, key_padding_mask=padding)[0]


def test_an_attention_that_is_evaluated_is_one_operator() -> None:
    """As in eager mode, between steps that train."""
    torch.manual_seed(0)
    model, padding = Attending(32, 4, batch_first=True), torch.arange(LENGTH).expand(ROWS, -1) > LENGTH // 2
    run = ours(model)
    for given in ((), (padding,)):
        for x in torch.randn(4, ROWS, LENGTH, 32):
            model.eval()
            with torch.no_grad():
                assert torch.equal(run(x, *given), model(x, *given))
            model.train()
            run(x, *given).sum().backward()


def test_a_scan_goes_step_by_step() -> None:
    """Under Dynamo transformers scans in another order, with other sums."""
    from transformers import MambaConfig, MambaForCausalLM

    sizes: Any = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(**sizes, pad_token_id=0, bos_token_id=0, eos_token_id=0))
    assert all(map(torch.equal, trained(model, ours(model), {}), trained(model, model, {})))


def test_transformers_may_come_later() -> None:
    """It is prepared before Dynamo reads anything, also after a reset of Dynamo's."""
    dynamo.forget()
    assert masks._prepare in callback_handler.start_callbacks
