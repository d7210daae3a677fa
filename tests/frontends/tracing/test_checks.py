"""What returns nothing, and may raise an error, is called in every step, before what it was called before."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import outgrow
from outgrow.analysis.precedence import predecessors
from outgrow.analysis.updates import is_update
from outgrow.frontends import within_budget
from outgrow.frontends.tracing.capture import capture
from outgrow.ir.graph import Role

_CALLS: list[float] = []


@torch.library.custom_op("outgrow_tests::noted", mutates_args=())
def noted(number: Tensor) -> None:
    """Act outside of the step."""
    _CALLS.append(float(number))


@noted.register_fake
def _(_number: Tensor) -> None:
    return None


CHECKS: dict[str, Callable[[Tensor], object]] = {
    "_linalg_check_errors": torch.linalg.cholesky,
    "_assert_async": lambda matrix: torch.ops.aten._assert_async.default(matrix.diagonal().min() > 0),
}


class Factored(nn.Module):
    """Two layers, behind a check of a matrix that must be positive definite."""

    matrix: Tensor

    def __init__(self, check: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layers, self.check = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)), check
        self.register_buffer("matrix", torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        self.check(self.matrix)
        return y


def in_training(
    check: Callable[[Tensor], object],
) -> tuple[Factored, torch.optim.Optimizer, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    model = Factored(check)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


@pytest.mark.parametrize(("name", "check"), CHECKS.items(), ids=CHECKS.keys())
def test_updates_wait_for_a_check_but_not_for_each_other(name: str, check: Callable[[Tensor], object]) -> None:
    """So an error leaves the parameters, and updates may go forward to their gradients."""
    model, optimizer, step = in_training(check)
    graph = capture(step, [model], [optimizer], (torch.randn(2, 4),)).graph
    (number,) = (at for at, op in enumerate(graph.ops) if op.operator.split(".")[1] == name)
    updates = [at for at, op in enumerate(graph.ops) if is_update(graph, op)]
    assert len(updates) == 6
    for at in updates:
        assert number in predecessors(graph)[at]
        assert not set(updates) & set(predecessors(graph)[at])


def test_setting_the_generator_is_no_check() -> None:
    """Updates need not wait for it."""
    model, optimizer, step = in_training(lambda _matrix: torch.set_rng_state(torch.get_rng_state()))
    graph = capture(step, [model], [optimizer], (torch.randn(2, 4),)).graph
    assert Role.TURN not in {storage.role for storage in graph.storages.values()}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_an_error_of_a_check_passes_and_the_step_is_undone(
    check: Callable[[Tensor], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step goes on once its reason is gone."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)
    model, optimizer, step = in_training(check)
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
    x = torch.randn(2, 4)
    losses = [planned(x), planned(x)]
    model.matrix.neg_()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"positive-definite|Expected Tensor"):
        planned(x)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    model.matrix.neg_()
    losses += [planned(x)]
    _, _, eager = in_training(check)
    assert [float(loss.detach()) for loss in losses] == [float(eager(x).detach()) for _ in range(3)]


def test_an_operator_that_returns_nothing_is_called_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be there for what it does elsewhere."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)
    model, optimizer, step = in_training(lambda matrix: noted(matrix.sum()))
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
    _CALLS.clear()
    for _ in range(3):
        planned(torch.randn(2, 4))
    assert _CALLS == [4.0, 4.0, 4.0]
