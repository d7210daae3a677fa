"""Is a batch norm by its sums the one of ATen, gradients and running statistics included?"""

import pytest
import torch
from torch import Tensor, fx, nn

from outgrow.frontends.tracing.trace import trace
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.training.state import BatchSlot, Training
from outgrow.frontends.workers.batch_norms import batch_norms_by_sums

TOLERANCE = 1e-13


def traced(norm: nn.Module, x: Tensor) -> Traced:
    """The trace of a step that normalises a batch, and moves against the gradient."""
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1) if list(norm.parameters()) else None

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        y = norm(x)
        (gradient,) = torch.autograd.grad((y * x.sin()).sum(), x, retain_graph=optimizer is not None)
        if optimizer is not None:
            (y * x.cos()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return y, gradient

    return trace(step, Training((norm,), () if optimizer is None else (optimizer,)), (x,), {})


def run(found: Traced, norm: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What a trace returns, and what it leaves of the module's tensors."""
    state = {name: tensor.detach().clone() for name, tensor in norm.state_dict().items()}
    given = [x if isinstance(slot, BatchSlot) else _of(state, str(slot)) for slot in found.tensors]
    run_of = fx.Interpreter(found.module)
    returned = run_of.run(*given, *found.hyper.values(), enable_io_processing=False)
    return [item.detach() for item in returned if isinstance(item, Tensor)], list(state.values())


def _of(state: dict[str, Tensor], slot: str) -> Tensor:
    """The tensor of a slot, by its name."""
    return next(tensor for name, tensor in state.items() if f"'{name}'" in slot)


@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 7), (3, 4, 5, 6), (2, 3, 4, 3, 5)])
@pytest.mark.parametrize("is_plain", [False, True])
def test_sums_are_what_the_operator_gives(shape: tuple[int, ...], is_plain: bool) -> None:
    """Outputs, gradients, parameters and running statistics, in every number of dimensions."""
    torch.manual_seed(0)
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    norm = kind(shape[1], affine=not is_plain, track_running_stats=not is_plain).double()
    x = torch.randn(shape, dtype=torch.float64)
    found = traced(norm, x)
    expected = run(found, norm, x)
    batch_norms_by_sums(found)
    targets = {str(node.target) for node in found.module.graph.nodes}
    assert not any("native_batch_norm" in target for target in targets)
    for ours, theirs in zip(run(found, norm, x), expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one.double() - other.double()).abs().max() <= TOLERANCE * max(1.0, float(other.abs().max()))


def test_norms_that_do_not_train_stay() -> None:
    """There is nothing to sum."""
    found = traced(nn.BatchNorm2d(3).double().eval(), torch.randn(2, 3, 4, 4, dtype=torch.float64))
    before = [str(node.target) for node in found.module.graph.nodes]
    batch_norms_by_sums(found)
    assert [str(node.target) for node in found.module.graph.nodes] == before
