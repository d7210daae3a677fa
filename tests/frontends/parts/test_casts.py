"""Where parts cast a weight several times in one autocast block it is told, since eager mode casts it once."""

import pytest
import torch
from torch import nn

from outgrow.frontends import dynamo
from outgrow.frontends.platforms import on_cpu
from outgrow.frontends.preparing.machines import described_machine
from outgrow.remarks import Remark

pytestmark = pytest.mark.usefixtures("parts_apart")


def test_a_weight_that_is_cast_twice_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call in a block of its own has eager's bits, without a remark; two calls in one block have one."""
    monkeypatch.setattr(on_cpu, "this_machine", lambda _folder: described_machine("xeon-2core-disk"))
    torch.manual_seed(0)
    module, xs = nn.Linear(32, 32), torch.randn(2, 16, 32)
    model = torch.compile(module, backend=dynamo.backend, options={"memory_budget": "8GiB"})
    found: list[torch.Tensor] = []
    for run in (module, model):
        losses = []
        for x in xs:
            with torch.autocast("cpu", torch.bfloat16):
                losses.append(run(x).float().square().mean())
        (losses[0] + losses[1]).backward()
        assert module.weight.grad is not None
        found.append(module.weight.grad)
        module.zero_grad()
    assert torch.equal(*found)
    with torch.autocast("cpu", torch.bfloat16):
        model(xs[0])
        with pytest.warns(Remark, match="several calls of compiled parts in one autocast block"):
            model(xs[1])
        model(xs[1])  # it is told once
