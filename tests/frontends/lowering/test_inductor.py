"""Are compiled kernels what they were made of, and do they give the same bits at every budget?"""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.exc import InductorError
from torch.nn import functional as F
from torch.optim import Adam

import outgrow
from outgrow.analysis.cost import COMPILED
from outgrow.errors import Uncapturable
from outgrow.frontends import dynamo
from outgrow.frontends.lowering.fusing import fusions
from outgrow.frontends.lowering.inductor import by_inductor, text
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.names import resolve_operator
from outgrow.ir.graph import Graph
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import SHARES, Within, differences, eager, left_by

ROWS, WIDTH = 32, 64
BLOCKS = 3


def graph_of(function: Callable[..., object], *args: Tensor) -> Graph:
    """The graph of a function of tensors."""
    return capture(function, [], [], args).graph


def texts(graph: Graph) -> list[str]:
    """What the fusions of a graph compute."""
    return [text(graph, fusion) for fusion in fusions(graph)]


class Block(nn.Module):
    """Normalise, join and bend."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and what is made of it."""
        return x + F.gelu(self.linear(self.norm(x)) * 2)


def test_alike_fusions_have_one_text() -> None:
    """Whatever their values are called; another layout or another number is another fusion."""
    x = torch.ones(4, 4)
    first, second = texts(graph_of(lambda x: (((x * 2).relu() @ x) * 2).relu() @ x, x))
    assert first == second
    others = [
        lambda x: (x * 3).relu() @ x,
        lambda x: (x.t() * 2).relu() @ x,
        lambda x: (x * 2).sigmoid() @ x,
        lambda x: ((twice := x * 2).relu() @ x, twice),
    ]
    for other in others:
        assert texts(graph_of(other, x)) != [first]


def test_results_have_memory_of_their_own() -> None:
    """Also where a compiler finds that two are equal, or that one is the operand; a view of a result is none."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x * 2, x.clone(), (x * 2).t() + 1

    x = torch.arange(12.0).reshape(3, 4)
    captured = by_inductor(capture(function, [], [], (x,)))
    (op,) = captured.graph.ops
    results = resolve_operator(op.operator)([x])
    assert isinstance(results, list)
    for result, expected in zip(results, function(x), strict=True):
        assert torch.equal(result, expected)
    owners = {tensor.untyped_storage().data_ptr() for tensor in (x, *results)}
    assert len(owners) == 1 + len(results)
    for name, result in zip(op.results, results, strict=True):
        assert name is not None
        value = captured.graph.values[name]
        assert (value.shape, value.strides) == (result.shape, result.stride())
        assert result.untyped_storage().nbytes() == captured.graph.storages[value.storage].size_bytes


def test_a_fusion_that_cannot_be_compiled_is_refused() -> None:
    """In one sentence, with what the compiler says and the remedy."""

    def fail(*_args: object) -> None:
        raise InductorError(RuntimeError("no C++ compiler was found\nand much more"), None)

    captured = capture(lambda x: (x * 5).tanh().relu(), [], [], (torch.ones(WIDTH),))
    with (
        patch("torch._inductor.compile_fx.compile_fx", fail),
        pytest.raises(Uncapturable, match=r"aten.tanh.*no C\+\+ compiler was found.*Leave kernels") as refusal,
    ):
        by_inductor(captured)
    assert "\n" not in str(refusal.value)


def blocks() -> Job:
    """Blocks that are alike, each with a norm and a residual."""
    model = nn.Sequential(*[Block(WIDTH) for _ in range(BLOCKS)])
    optimizer = Adam(model.parameters())

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), lambda: (torch.randn(ROWS, WIDTH),))


def test_compiled_fusions_have_the_same_bits_at_every_budget(disk_folder: Path) -> None:
    """Those that they have in core, and about the numbers of eager."""
    spill = Spill(OnDisk(disk_folder))
    try:
        found = [left_by(blocks, Within(share, spill, by_inductor)) for share in SHARES]
    finally:
        spill.close()
    for left in found[1:]:
        assert differences(left, found[0]) == []
    expected = left_by(blocks, eager)
    for slot, tensor in found[0].state.items():
        torch.testing.assert_close(tensor, expected.state[slot])


def test_a_step_with_kernels_of_inductor(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs its compiled kernels, also where it fits; so do the parts of a loop."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder))
    torch.manual_seed(0)
    job = blocks()
    (model,), (optimizer,) = job.models, job.optimizers
    options = {"memory_budget": "10TiB", "kernels": "inductor", "offload_dir": disk_folder}
    step = outgrow.compile(job.step, model=model, optimizer=optimizer, **options)
    for _ in range(2):
        step(*job.batch())
    assert any(op.operator.startswith(COMPILED) for op in step.derived.ops)
    step.close()
    part = torch.compile(model, backend="outgrow", options=options)
    x = torch.randn(ROWS, WIDTH)
    torch.testing.assert_close(part(x), model(x))
    dynamo.forget()


def test_unknown_kernels() -> None:
    """They are refused when the step is compiled, with the names of those that there are."""
    with pytest.raises(ValueError, match=r"kernels 'triton' are unknown.*eager, inductor"):
        Settings.of("1GiB", kernels="triton")
